package store_test

import (
	"testing"

	mesh "github.com/meshctl/mesh"
)

// Shows: M4, M30
func TestTheDeclarationOfAMeshThatWasLeftIsNotTakenForThatOfTheNext(t *testing.T) {
	st := open(t, t.TempDir())
	must(t, st.Hold(t.Context(), mesh.Declaration{Node: "old", Generation: 1, Final: true}))
	if got := held(t, st); got != 1 {
		t.Fatalf("it holds generation %d", got)
	}
	must(t, st.Leave(t.Context()))
	must(t, st.Left(t.Context()))
	must(t, st.Hold(t.Context(), mesh.Declaration{Node: "new", Generation: 1}))

	d, err := st.Declaration(t.Context())
	if err != nil || d == nil || d.Node != "new" || d.Final {
		t.Errorf("the first declaration of the next mesh reads as %+v, %v", d, err)
	}
}
