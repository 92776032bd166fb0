package pkg

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
)

var _ resource.Noter = (*Provider)(nil)

// ConffileLooker is a Manager that knows which configuration files of an
// installed package are not there.
type ConffileLooker interface {
	// MissingConffiles returns their paths.
	MissingConffiles(ctx context.Context, name string) ([]string, error)
}

// Notes says what of an installed package is not there although it is
// installed.
func (p *Provider) Notes(ctx context.Context, want mesh.Resource) []string {
	looker, ok := p.manager.(ConffileLooker)
	if !ok || want.Absent() {
		return nil
	}
	missing, err := looker.MissingConffiles(ctx, want.Name)
	if err != nil {
		p.log.LogAttrs(ctx, slog.LevelWarn, "the configuration files of a package were not looked at", slog.String("package", want.Name), slog.Any("error", err))
		return nil
	}
	if len(missing) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("installed, and somebody deleted its configuration files, which do not come back by themselves: %s", strings.Join(missing, ", "))}
}
