package file_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/host/resource"
	"github.com/meshctl/mesh/host/resource/file"
)

// zeros hands out content that is as long as it says and takes no memory.
type zeros int64

func (z zeros) Open(string) (io.ReadCloser, error) {
	return io.NopCloser(io.LimitReader(zeroReader{}, int64(z))), nil
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// child is what a process of its own does: write a file of zeros of a size and
// look at it, or only look whether there is one. It says how much memory that
// took.
func child(args []string, out io.Writer) error {
	size, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return err
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(zeroReader{}, size)); err != nil {
		return err
	}
	ctx := context.Background()
	p := file.New(file.Config{Content: zeros(size)})
	want := mesh.Resource{Kind: mesh.KindFile, Name: args[1], File: &mesh.FileSpec{
		Type: mesh.FileRegular, SHA256: hex.EncodeToString(h.Sum(nil)), Size: size,
	}}
	if args[0] == "write" {
		if err := p.Apply(ctx, want, resource.Diff{}); err != nil {
			return err
		}
	}
	diff, err := p.Check(ctx, want)
	if err != nil {
		return err
	}
	if diff.Zero() != (args[0] == "write") {
		return fmt.Errorf("looking found %q", diff)
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	_, peak, _ := strings.Cut(string(status), "VmHWM:")
	_, err = fmt.Fprintln(out, strings.Fields(peak)[0])
	return err
}
