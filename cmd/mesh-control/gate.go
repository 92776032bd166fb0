package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/control/api"
	"github.com/meshctl/mesh/repo"
)

// gate knows what the nodes' package tools can read, and warns of packages that
// some of them cannot. It stops nothing: the node may never be meant.
type gate struct {
	readers interface {
		PackageTools(ctx context.Context) ([]control.PackageTool, error)
	}
	log *slog.Logger
}

// zstd came to Debian's dpkg and to rpm with these versions. Ubuntu's dpkg had
// it long before under the same numbers.
const (
	dpkgWithZstd = "1.21.18"
	rpmWithZstd  = "4.14"
)

func cannotRead(t control.PackageTool, p repo.Package) bool {
	switch {
	case p.Format == repo.Deb && t.Tool == "dpkg":
		return p.Compression == "zst" && t.OS == "debian" && repo.CompareVersions(repo.Deb, t.Version, dpkgWithZstd) < 0
	case p.Format == repo.RPM && t.Tool == "rpm":
		return p.Compression == "zstd" && repo.CompareVersions(repo.RPM, t.Version, rpmWithZstd) < 0
	}
	return false
}

func (g gate) warn(ctx context.Context, done repo.Published, views []api.Published) []api.Published {
	tools, err := g.readers.PackageTools(ctx)
	if err != nil {
		g.log.Warn("what the nodes can read is not known, so nothing is warned of", "error", err)
		return views
	}
	for i, f := range done.Files {
		var nodes []string
		for _, t := range tools {
			if cannotRead(t, f.Package) {
				nodes = append(nodes, t.Node+" has "+t.Tool+" "+t.Version)
			}
		}
		if len(nodes) > 0 {
			views[i].Warning = fmt.Sprintf("%s %s is compressed with zstd, which %s cannot read: %s; build it with xz or gzip if it is meant for there",
				f.Package.Name, f.Package.Version, count(len(nodes)), shortened(nodes))
		}
	}
	return views
}

// shortened lists the first few.
func shortened(nodes []string) string {
	const shown = 5
	if more := len(nodes) - shown; more > 0 {
		return fmt.Sprintf("%s, and %d more", strings.Join(nodes[:shown], ", "), more)
	}
	return strings.Join(nodes, ", ")
}

func count(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}
