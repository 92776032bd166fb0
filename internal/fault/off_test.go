//go:build !fault

package fault_test

import (
	"testing"

	"github.com/meshctl/mesh/internal/fault"
)

func TestAReleaseDiesAtNoPoint(t *testing.T) {
	t.Setenv("MESH_FAULT_POINT", "here")
	fault.Point("here")
	if fault.Enabled {
		t.Error("points are compiled in without the tag")
	}
}
