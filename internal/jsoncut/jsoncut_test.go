package jsoncut_test

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/meshctl/mesh/internal/jsoncut"
)

func TestAMemberIsTakenOutOfWhateverStandsAroundIt(t *testing.T) {
	for _, c := range []struct{ object, rest, value string }{
		{`{"a":1}`, `{}`, `1`},
		{`{"a":"x","b":2}`, `{"b":2}`, `"x"`},
		{`{"b":2,"a":"x"}`, `{"b":2}`, `"x"`},
		{`{"b":2,"a":"x","c":3}`, `{"b":2,"c":3}`, `"x"`},
		{` { "b" : 2 , "a" : [ {"a":1}, "]" ] , "c" : 3 } `, ` { "b" : 2 ,  "c" : 3 } `, `[ {"a":1}, "]" ]`},
		{`{"a":"quote \" bracket } backslash \\","b":2}`, `{"b":2}`, `"quote \" bracket } backslash \\"`},
		{`{"a":null,"b":{"a":2}}`, `{"b":{"a":2}}`, `null`},
		{`{"\"a":1,"a":2}`, `{"\"a":1}`, `2`},
	} {
		rest, value := jsoncut.Member([]byte(c.object), "a")
		if string(rest) != c.rest || string(value) != c.value {
			t.Errorf("a is taken out of %s as %s, and %s is left; want %s, and %s left", c.object, value, rest, c.value, c.rest)
		}
	}
}

func TestWhatIsNotExactlyOneMemberIsLeftToTheDecoder(t *testing.T) {
	for _, object := range []string{
		``, ` `, `null`, `7`, `"a"`, `["a",1]`, `{}`, `{"b":1}`, `{"a":1,"a":2}`, `{"\u0061":1}`, `{"A":1}`,
		`{"a":1`, `{"a":1,`, `{"a":1}}`, `{"a":1} x`, `{"a"}`, `{"a":}`, `{"a" 1}`, `{"a":"x}`, `{a:1}`, `{"a":[1}`, `{,"a":1}`,
	} {
		rest, value := jsoncut.Member([]byte(object), "a")
		if value != nil || string(rest) != object {
			t.Errorf("of %q there is cut out %q, and %q is left; want it whole", object, value, rest)
		}
	}
}

func TestElementsAreThoseOfAnArrayAndOfNothingElse(t *testing.T) {
	for _, c := range []struct {
		array string
		want  []string
	}{
		{`[]`, []string{}},
		{` [ ] `, []string{}},
		{`[1]`, []string{`1`}},
		{` [ {"a":[1,2]} , "],[" , null ] `, []string{`{"a":[1,2]}`, `"],["`, `null`}},
	} {
		elements, is := jsoncut.Elements([]byte(c.array))
		var got = []string{}
		for _, e := range elements {
			got = append(got, string(e))
		}
		if !is || !slices.Equal(got, c.want) {
			t.Errorf("the elements of %s are %q, %v; want %q", c.array, got, is, c.want)
		}
	}
	for _, other := range []string{``, `null`, `{"a":1}`, `[`, `[1`, `[1,`, `[1,]`, `[1] x`, `[,1]`, `["a]`} {
		if elements, is := jsoncut.Elements([]byte(other)); is {
			t.Errorf("%q passes for an array of %q", other, elements)
		}
	}
}

// What is cut apart has to be what the decoder sees in the whole, and broken in
// one of its parts when the whole is.
func FuzzMember(f *testing.F) {
	for _, seed := range []string{`{"a":1,"b":[{"a":"\\\""}]}`, `{"b":"x","a":{}}`, `{"a":1 "b":2}`, `{"a":tru,"b":2}`, ` {"a":-1.5e3}`, `{"a":1"b"}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, object []byte) {
		rest, value := jsoncut.Member(slices.Clone(object), "a")
		if value == nil {
			if string(rest) != string(object) {
				t.Fatalf("nothing was cut out of %q, and %q is left", object, rest)
			}
			return
		}
		if whole, parts := json.Valid(object), json.Valid(rest) && json.Valid(value); whole != parts {
			t.Fatalf("%q is valid: %v; its parts %q and %q are: %v", object, whole, rest, value, parts)
		}
		var all, some map[string]json.RawMessage
		if json.Unmarshal(object, &all) != nil || json.Unmarshal(rest, &some) != nil {
			return
		}
		if some == nil {
			some = map[string]json.RawMessage{}
		}
		if _, left := some["a"]; left {
			if !strings.Contains(string(object), `\`) {
				t.Fatalf("%q still has what was cut out of %q", rest, object)
			}
			return // the name came again, written with escapes
		}
		some["a"] = value
		if !maps.EqualFunc(all, some, func(x, y json.RawMessage) bool { return reflect.DeepEqual(decoded(x), decoded(y)) }) {
			t.Fatalf("%q was cut into %q and %q", object, rest, value)
		}
	})
}

func decoded(data []byte) any {
	var v any
	_ = json.Unmarshal(data, &v)
	return v
}

func FuzzElements(f *testing.F) {
	for _, seed := range []string{`[1,"a",[2],{"b":[]}]`, `[1 2]`, `[tru]`, `[]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, array []byte) {
		elements, is := jsoncut.Elements(array)
		var want []json.RawMessage
		if err := json.Unmarshal(array, &want); err == nil && want != nil {
			if !is || len(elements) != len(want) {
				t.Fatalf("%q has %d elements, want %d", array, len(elements), len(want))
			}
		} else if is && !slices.ContainsFunc(elements, func(e []byte) bool { return !json.Valid(e) }) {
			t.Fatalf("%q is no array, and passes for one of good elements", array)
		}
	})
}
