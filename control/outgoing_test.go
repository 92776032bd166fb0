package control

import (
	"bytes"
	"encoding/json"
	"testing"

	mesh "github.com/meshctl/mesh"
)

func fileOf(size int) []mesh.Resource {
	file := &mesh.FileSpec{Type: mesh.FileRegular}
	file.SetContent(bytes.Repeat([]byte("x"), size))
	return []mesh.Resource{{Kind: mesh.KindFile, Name: "/etc/a", File: file}}
}

func TestWhatTravelsIsTheDeclarationWithItsResourcesEncodedOnce(t *testing.T) {
	var known encodings
	shared := fileOf(100)
	var bodies []*byte
	for _, want := range []mesh.Declaration{
		{Node: "web-1", Generation: 7, Resources: shared, Released: []mesh.ResourceID{"file:/[]"}},
		{Node: "web-2", Generation: 9, Resources: shared},
		{Node: "web-3", Generation: 2, Final: true, Resources: []mesh.Resource{}, Released: []mesh.ResourceID{"file:/b"}},
	} {
		resources, err := known.of(want.Resources)
		if err != nil {
			t.Fatal(err)
		}
		out, err := outgoing(want, resources)
		if err != nil {
			t.Fatal(err)
		}
		whole, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Join(out.Body, nil); !bytes.Equal(got, whole) || out.Generation != want.Generation {
			t.Errorf("what travels as generation %s is\n%s, want\n%s", out.Generation, got, whole)
		}
		bodies = append(bodies, &out.Body[1][0])
	}
	if bodies[0] != bodies[1] {
		t.Error("two nodes that get the same have two copies of it")
	}
}

func TestOfWhatWasEncodedTheOldestIsForgotten(t *testing.T) {
	var known encodings
	all := make([][]mesh.Resource, 40)
	for i := range all {
		all[i] = fileOf(1 << 20)
		if _, err := known.of(all[i]); err != nil {
			t.Fatal(err)
		}
		if known.bytes > encodingsLimit || len(known.known) != len(known.kept) {
			t.Fatalf("after %d there are %d bytes, %d by resource, %d in order", i+1, known.bytes, len(known.known), len(known.kept))
		}
	}
	if _, kept := known.known[encodedList{&all[0][0], 1}]; kept {
		t.Error("the oldest is still kept")
	}
	if _, kept := known.known[encodedList{&all[39][0], 1}]; !kept {
		t.Error("the newest is not kept")
	}
	if again, err := known.of(all[0]); err != nil || len(again) < 1<<20 {
		t.Errorf("what was forgotten is encoded as %d bytes, %v", len(again), err)
	}
}

func TestListsThatBeginAlikeAreToldApart(t *testing.T) {
	var known encodings
	long := append(fileOf(1), fileOf(2)...)
	for _, list := range [][]mesh.Resource{long, long[:1], long} {
		want, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := known.of(list); err != nil || !bytes.Equal(got, want) {
			t.Errorf("a list of %d is encoded as %s, %v; want %s", len(list), got, err, want)
		}
	}
}
