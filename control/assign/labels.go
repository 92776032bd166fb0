package assign

import (
	"fmt"
	"maps"
	"reflect"
	"slices"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// labelMap is the value of the variable labels. A label that a node does not
// have reads as the empty string, so that labels.role == "web" is false and
// labels.role != "web" is true for it; has(labels.role) and "role" in labels
// tell the two apart.
//
// It deliberately lacks the Find of a CEL map: with it, a missing key is an
// error.
type labelMap map[string]string

// ConvertToNative returns the map itself where that is what is wanted.
func (l labelMap) ConvertToNative(desc reflect.Type) (any, error) {
	if reflect.TypeOf(map[string]string(nil)).AssignableTo(desc) {
		return map[string]string(l), nil
	}
	return nil, fmt.Errorf("labels cannot become %v", desc)
}

// ConvertToType knows only the map itself.
func (l labelMap) ConvertToType(want ref.Type) ref.Val {
	switch want {
	case types.MapType:
		return l
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("labels cannot become %s", want.TypeName())
}

// Equal compares with another map of labels or a map in the expression.
func (l labelMap) Equal(other ref.Val) ref.Val {
	switch o := other.(type) {
	case labelMap:
		return types.Bool(maps.Equal(l, o))
	case traits.Mapper:
		if o.Size() != types.Int(len(l)) {
			return types.False
		}
		for k, v := range l {
			found, ok := o.Find(types.String(k))
			if !ok || found.Equal(types.String(v)) != types.True {
				return types.False
			}
		}
		return types.True
	}
	return types.False
}

// Type is that of every map.
func (l labelMap) Type() ref.Type { return types.MapType }

// Value is the map.
func (l labelMap) Value() any { return map[string]string(l) }

// Contains tells whether the node has the label.
func (l labelMap) Contains(key ref.Val) ref.Val {
	k, ok := key.(types.String)
	if !ok {
		return types.False
	}
	_, has := l[string(k)]
	return types.Bool(has)
}

// Get returns the value of a label, empty when the node does not have it.
func (l labelMap) Get(key ref.Val) ref.Val {
	k, ok := key.(types.String)
	if !ok {
		return types.NewErr("the name of a label is a string")
	}
	return types.String(l[string(k)])
}

// IsSet is has(labels.x).
func (l labelMap) IsSet(field ref.Val) ref.Val { return l.Contains(field) }

// Size is the number of labels.
func (l labelMap) Size() ref.Val { return types.Int(len(l)) }

// Iterator goes over the names of the labels in order.
func (l labelMap) Iterator() traits.Iterator {
	return types.NewStringList(types.DefaultTypeAdapter, slices.Sorted(maps.Keys(l))).Iterator()
}
