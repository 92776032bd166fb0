package main

import (
	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/document"
)

// loader reads a declaration from a file. Everything that is wrong with it
// comes back as mesh.Problems.
type loader func(path string) (loaded, error)

// loaded is a declaration as it was read from a file.
type loaded struct {
	// File is the path under which it was read.
	File string
	Doc  mesh.Document
	// Blobs holds the content that does not travel in Doc, by its SHA-256.
	Blobs map[string][]byte
	// Locate gives problems that the control plane found a place in the file.
	Locate func(mesh.Problems) mesh.Problems
}

// loadDocument reads a declaration from disk.
func loadDocument(path string) (loaded, error) {
	file, err := document.Open(path)
	if err != nil {
		return loaded{}, err
	}
	doc, blobs := document.Detach(file.Document)
	return loaded{File: path, Doc: doc, Blobs: blobs, Locate: file.Locate}, nil
}
