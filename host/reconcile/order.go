package reconcile

import (
	"path"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// order sorts resources so that each comes after what it requires and a file
// after the declared directory that holds it, and otherwise as they stand. Where
// that contradicts what is required, the place of files does not count.
// Resources that require themselves, directly or through others, come back in
// cyclic; nothing of them can be applied.
func order(resources []mesh.Resource) (sorted []mesh.Resource, cyclic []mesh.ResourceID) {
	at := make(map[mesh.ResourceID]int, len(resources))
	required := make([][]int, len(resources))
	for i, r := range resources {
		at[r.ID()] = i
	}
	for i, r := range resources {
		for _, need := range r.Requires {
			if j, declared := at[need]; declared {
				required[i] = append(required[i], j)
			}
		}
	}
	if sorted, cyclic = sortAfter(resources, placed(resources, at, required)); len(cyclic) > 0 {
		return sortAfter(resources, required)
	}
	return sorted, nil
}

// placed adds, to what each resource comes after, the declared directory that
// holds it. A directory that is to be absent comes after what it holds.
func placed(resources []mesh.Resource, at map[mesh.ResourceID]int, required [][]int) [][]int {
	after := slices.Clone(required)
	for i, r := range resources {
		if r.Kind != mesh.KindFile {
			continue
		}
		for dir := path.Dir(r.Name); dir != "/" && dir != "."; dir = path.Dir(dir) {
			j, declared := at[mesh.NewResourceID(mesh.KindFile, dir)]
			if !declared {
				continue
			}
			first, then := j, i
			if resources[j].Absent() {
				first, then = i, j
			}
			after[then] = append(slices.Clone(after[then]), first)
			break
		}
	}
	return after
}

// sortAfter sorts resources so that each comes after those that after lists for
// it.
//
// It is Tarjan's algorithm: components of resources that come after each other
// come out after every component that they come after.
func sortAfter(resources []mesh.Resource, after [][]int) (sorted []mesh.Resource, cyclic []mesh.ResourceID) {
	var (
		turn    int
		stack   []int
		reached = make([]int, len(resources)) // turn in which it was reached; 0: not yet
		lowest  = make([]int, len(resources)) // earliest on the stack that it leads to
		onStack = make([]bool, len(resources))
	)
	var visit func(i int)
	visit = func(i int) {
		turn++
		reached[i], lowest[i] = turn, turn
		stack = append(stack, i)
		onStack[i] = true
		for _, j := range after[i] {
			switch {
			case reached[j] == 0:
				visit(j)
				lowest[i] = min(lowest[i], lowest[j])
			case onStack[j]:
				lowest[i] = min(lowest[i], reached[j])
			}
		}
		if lowest[i] != reached[i] {
			return
		}
		cut := slices.Index(stack, i)
		component := slices.Sorted(slices.Values(stack[cut:]))
		stack = stack[:cut]
		for _, j := range component {
			onStack[j] = false
		}
		if len(component) == 1 && !slices.Contains(after[i], i) {
			sorted = append(sorted, resources[i])
			return
		}
		for _, j := range component {
			cyclic = append(cyclic, resources[j].ID())
		}
	}
	for i := range resources {
		if reached[i] == 0 {
			visit(i)
		}
	}
	return sorted, cyclic
}

// cutLast takes the resource that comes last, and what requires it directly or
// through others, off the end of sorted resources.
func cutLast(sorted []mesh.Resource, last mesh.ResourceID) (rest, cut []mesh.Resource) {
	var ids []mesh.ResourceID
	for _, r := range sorted {
		if last != "" && (r.ID() == last || slices.ContainsFunc(r.Requires, func(id mesh.ResourceID) bool { return slices.Contains(ids, id) })) {
			ids = append(ids, r.ID())
			cut = append(cut, r)
			continue
		}
		rest = append(rest, r)
	}
	return rest, cut
}

// groups cuts sorted resources into runs that may be applied in one step:
// resources of a kind that can take a set, standing together, none of which
// requires another one of the run.
func groups(sorted []mesh.Resource, takesSet func(mesh.Kind) bool) [][]mesh.Resource {
	var out [][]mesh.Resource
	for _, r := range sorted {
		if n := len(out); n > 0 && takesSet(r.Kind) && out[n-1][0].Kind == r.Kind && !requiresAny(r, out[n-1]) {
			out[n-1] = append(out[n-1], r)
			continue
		}
		out = append(out, []mesh.Resource{r})
	}
	return out
}

func requiresAny(r mesh.Resource, run []mesh.Resource) bool {
	return slices.ContainsFunc(run, func(other mesh.Resource) bool {
		return slices.Contains(r.Requires, other.ID())
	})
}

// removalOrder puts files before packages, so that a package does not take a
// directory away under a file of ours, and what lies deeper before what holds
// it.
func removalOrder(owned []mesh.Owned) {
	depth := func(o mesh.Owned) int { return strings.Count(o.Resource.Name(), "/") }
	slices.SortStableFunc(owned, func(a, b mesh.Owned) int {
		if a.Resource.Kind() != b.Resource.Kind() {
			if a.Resource.Kind() == mesh.KindFile {
				return -1
			}
			return 1
		}
		if a.Resource.Kind() == mesh.KindFile && depth(a) != depth(b) {
			return depth(b) - depth(a)
		}
		return strings.Compare(string(a.Resource), string(b.Resource))
	})
}
