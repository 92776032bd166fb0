package link

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
)

// decodedAlike fails unless the body is decoded as the decoder of JSON does it.
func decodedAlike(t interface {
	Helper()
	Fatalf(string, ...any)
}, body []byte) {
	t.Helper()
	var want mesh.Declaration
	wantErr := json.Unmarshal(body, &want)
	got, err := decodeDeclaration(body)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%.200s\nis decoded with %v, want %v", body, err, wantErr)
	}
	if err == nil && !reflect.DeepEqual(got, want) {
		t.Fatalf("%.200s\nis decoded as %+v\nwant %+v", body, got, want)
	}
}

func TestADeclarationIsDecodedAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := mesh.Declaration{Node: rapid.String().Draw(t, "node"), Generation: mesh.Generation(rapid.Uint64().Draw(t, "generation")), Final: rapid.Bool().Draw(t, "final")}
		for range rapid.IntRange(0, 4).Draw(t, "resources") {
			r := mesh.Resource{Kind: mesh.KindFile, Name: rapid.String().Draw(t, "name"), From: rapid.String().Draw(t, "from")}
			if rapid.Bool().Draw(t, "file") {
				r.File = &mesh.FileSpec{Target: rapid.String().Draw(t, "target"), Sensitive: rapid.Bool().Draw(t, "sensitive")}
				if rapid.Bool().Draw(t, "content") {
					r.File.SetContent(rapid.SliceOf(rapid.Byte()).Draw(t, "content"))
				}
			} else {
				r.Package = &mesh.PackageSpec{Version: rapid.String().Draw(t, "version")}
			}
			d.Resources = append(d.Resources, r)
		}
		body, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		decodedAlike(t, body)
	})
}

func TestADeclarationInAnUnusualFormIsDecodedAllTheSame(t *testing.T) {
	for _, body := range []string{
		`null`, `{}`, `{"resources":null}`, `{"resources":[]}`, `{"resources":[null]}`, `{"resources":[{"file":null}]}`,
		`{"resources":[{"file":{"content":null}}]}`, `{"resources":[{"file":{"content":""}}]}`,
		` { "resources" : [ { "file" : { "content" : "YQ==" , "sha256" : "x" } , "kind" : "file" } ] , "node" : "n" } `,
		`{"resources":[{"file":{"content":"YQ==","trace":{"content":"b"}},"content":"c"}],"trace":[{"resources":[]}]}`,
		`{"resources":[{"file":{"content":"YQ=="}}]}`, `{"resources":[{"File":{"Content":"YQ=="}}]}`, `{"Resources":[{"file":{"content":"YQ=="}}]}`,
		`{"resources":[{"file":{"content":"YQ==\n"}}]}`, `{"resources":[{"file":{"content":"Y"}}]}`, "{\"resources\":[{\"file\":{\"content\":\"YQ==\n\"}}]}",
		`{"resources":[{"file":{"content":"YR=="}}]}`, `{"resources":[{"file":{"content":[97]}}]}`, `{"resources":[{"file":{"content":7}}]}`,
		`{"resources":[{"file":{"content":"YQ=="}},]}`, `{"resources":[{"file":{"content":"YQ=="}}]`, `{"resources":[{"file":{"content":"YQ==" "x":1}}]}`,
		`{"resources":{"file":{}}}`, `{"resources":["x"]}`, `{"generation":-1,"resources":[]}`, `[]`, ``, `{"resources":[{"file":{"content":"YQ==","size":"x"}}]}`,
	} {
		decodedAlike(t, []byte(body))
	}
}

func FuzzDeclaration(f *testing.F) {
	f.Add([]byte(`{"node":"n","generation":7,"resources":[{"kind":"file","name":"/a","file":{"type":"regular","content":"YQ==","size":1}}],"released":["file:/b"]}`))
	f.Add([]byte(`{"resources":[{"kind":"package","name":"x","package":{}}]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		// Of names that come twice, by another case or by escapes, the decoder takes
		// now the first and now the last.
		if strings.Contains(string(body), `\`) || strings.ContainsFunc(string(body), func(r rune) bool { return r >= 'A' && r <= 'Z' || r > 127 }) {
			var d mesh.Declaration
			if _, err := decodeDeclaration(body); err == nil && json.Unmarshal(body, &d) != nil {
				t.Fatalf("%q is taken and is no declaration", body)
			}
			return
		}
		decodedAlike(t, body)
	})
}
