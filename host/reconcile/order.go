package reconcile

import (
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// order sorts resources so that each comes after what it requires, and
// otherwise as they stand. Resources that require themselves through others
// come back in cyclic; nothing of them can be applied.
func order(resources []mesh.Resource) (sorted []mesh.Resource, cyclic []mesh.ResourceID) {
	byID := make(map[mesh.ResourceID]mesh.Resource, len(resources))
	for _, r := range resources {
		byID[r.ID()] = r
	}
	const (
		visiting = 1
		done     = 2
	)
	mark := make(map[mesh.ResourceID]int, len(resources))
	var visit func(id mesh.ResourceID, path []mesh.ResourceID)
	visit = func(id mesh.ResourceID, path []mesh.ResourceID) {
		r, declared := byID[id]
		if !declared || mark[id] == done {
			return
		}
		if mark[id] == visiting {
			for _, on := range path[slices.Index(path, id):] {
				if !slices.Contains(cyclic, on) {
					cyclic = append(cyclic, on)
				}
			}
			return
		}
		mark[id] = visiting
		for _, need := range r.Requires {
			visit(need, append(slices.Clone(path), id))
		}
		mark[id] = done
		sorted = append(sorted, r)
	}
	for _, r := range resources {
		visit(r.ID(), nil)
	}
	sorted = slices.DeleteFunc(sorted, func(r mesh.Resource) bool { return slices.Contains(cyclic, r.ID()) })
	return sorted, cyclic
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
