package mesh_test

import (
	"encoding/json"
	"slices"
	"testing"

	mesh "github.com/meshctl/mesh"
)

func TestWhatAHostOwnsHasOneDigestWhateverTheOrder(t *testing.T) {
	a := mesh.Owned{Resource: "file:/a", Made: mesh.MadeCreated, Generation: 1, Wrote: json.RawMessage(`{"sha256":"1"}`)}
	b := mesh.Owned{Resource: "package:b", Made: mesh.MadeExisted, Generation: 2}

	if mesh.OwnedDigest([]mesh.Owned{a, b}) != mesh.OwnedDigest([]mesh.Owned{b, a}) {
		t.Error("the order of what is owned changes its digest")
	}
}

func TestTheDigestOfWhatIsOwnedChangesWithWhatRemovingDependsOn(t *testing.T) {
	base := mesh.Owned{Resource: "file:/a", Made: mesh.MadeCreated, Wrote: json.RawMessage(`{"sha256":"1"}`)}
	digests := []string{mesh.OwnedDigest(nil), mesh.OwnedDigest([]mesh.Owned{base})}
	for _, change := range []func(*mesh.Owned){
		func(o *mesh.Owned) { o.Resource = "file:/b" },
		func(o *mesh.Owned) { o.Made = mesh.MadeReplaced },
		func(o *mesh.Owned) { o.Wrote = json.RawMessage(`{"sha256":"2"}`) },
	} {
		other := base
		change(&other)
		digests = append(digests, mesh.OwnedDigest([]mesh.Owned{other}))
	}

	slices.Sort(digests)
	if distinct := len(slices.Compact(slices.Clone(digests))); distinct != len(digests) {
		t.Errorf("%d different holdings have %d digests", len(digests), distinct)
	}
}

func TestAFrameWithoutABodyHasNone(t *testing.T) {
	f, err := mesh.NewFrame(mesh.FrameProve, 0, nil)
	if err != nil {
		t.Fatal(err)
	}

	data, err := json.Marshal(f)

	if err != nil || string(data) != `{"type":"prove"}` {
		t.Errorf("the frame is %s, %v", data, err)
	}
}
