package link

import (
	"encoding/base64"
	"encoding/json"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/jsoncut"
)

// decodeDeclaration decodes the body of a declare frame. Nearly all of it is the
// content of files, which is decoded by itself: a decoder of JSON goes through
// every byte of it three times.
func decodeDeclaration(body []byte) (mesh.Declaration, error) {
	var d mesh.Declaration
	rest, resources := jsoncut.Member(body, "resources")
	if err := json.Unmarshal(rest, &d); err != nil {
		return mesh.Declaration{}, err
	}
	if resources == nil {
		return d, nil
	}
	elements, list := jsoncut.Elements(resources)
	if !list {
		err := json.Unmarshal(resources, &d.Resources)
		return d, err
	}
	d.Resources = make([]mesh.Resource, len(elements))
	for i, element := range elements {
		if err := decodeResource(element, &d.Resources[i]); err != nil {
			return mesh.Declaration{}, err
		}
	}
	return d, nil
}

func decodeResource(data []byte, r *mesh.Resource) error {
	rest, file := jsoncut.Member(data, "file")
	spec, content := jsoncut.Member(file, "content")
	decoded, plain := decodeContent(content)
	if !plain {
		return json.Unmarshal(data, r)
	}
	if err := json.Unmarshal(rest, r); err != nil {
		return err
	}
	r.File = &mesh.FileSpec{}
	if err := json.Unmarshal(spec, r.File); err != nil {
		return err
	}
	r.File.Content = decoded
	return nil
}

// decodeContent decodes a string of base64; false when it is something else, or
// has escapes.
func decodeContent(value []byte) ([]byte, bool) {
	if len(value) < 2 || value[0] != '"' {
		return nil, false
	}
	text := value[1 : len(value)-1]
	content, err := base64.StdEncoding.AppendDecode(make([]byte, 0, base64.StdEncoding.DecodedLen(len(text))), text)
	// The decoder skips line breaks, which a string may not hold.
	if err != nil || base64.StdEncoding.EncodedLen(len(content)) != len(text) {
		return nil, false
	}
	return content, true
}
