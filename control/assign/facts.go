package assign

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	mesh "github.com/meshctl/mesh"
)

// Facts is what expressions and templates can see of one node. It is not
// changed after it was made and may be shared.
type Facts struct {
	name    string
	labels  map[string]string
	profile mesh.Profile
	// labelsKey and profileKey identify the values that an expression used.
	labelsKey  string
	profileKey string
	own        Own
	// ownKey identifies own; empty when there is nothing.
	ownKey string
}

// Own is what a node gets because of who it is, whatever selects it.
type Own struct {
	Resources []mesh.Resource
	// Fault is why Resources cannot be known. Empty: they are.
	Fault string
}

// NewFacts makes the facts of a node. The map and the slice must not be changed
// afterwards.
func NewFacts(name string, labels map[string]string, profile mesh.Profile, own Own) *Facts {
	f := &Facts{
		name:       name,
		labels:     labels,
		profile:    profile,
		labelsKey:  labelsKey(labels),
		profileKey: profile.Digest(),
		own:        own,
	}
	if len(own.Resources) > 0 || own.Fault != "" {
		f.ownKey = name + " " + mesh.Declaration{Resources: own.Resources}.ContentDigest() + " " + own.Fault
	}
	return f
}

// vars are what expressions call the facts. They are made when an expression is
// evaluated, which is seldom, and not kept for each node.
func (f *Facts) vars() map[string]any {
	return map[string]any{
		varName:    f.name,
		varLabels:  labelMap(f.labels),
		varOS:      f.profile.OS,
		varArch:    f.profile.Arch,
		varProfile: f.profile,
	}
}

// Name is the name of the node.
func (f *Facts) Name() string { return f.name }

// key identifies the part of the facts that uses names.
func (f *Facts) key(uses usage) string {
	var b strings.Builder
	if uses.name {
		b.WriteString(f.name)
	}
	b.WriteByte(0)
	if uses.labels {
		b.WriteString(f.labelsKey)
	}
	b.WriteByte(0)
	if uses.profile {
		b.WriteString(f.profileKey)
	}
	return b.String()
}

func labelsKey(labels map[string]string) string {
	sum := sha256.New()
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		sum.Write([]byte(k))
		sum.Write([]byte{0})
		sum.Write([]byte(labels[k]))
		sum.Write([]byte{0})
	}
	return hex.EncodeToString(sum.Sum(nil))
}
