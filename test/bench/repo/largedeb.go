package main

import (
	"archive/tar"
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// writeLargeDeb writes a package whose one file is as large as an upload is to
// be, not compressed.
func writeLargeDeb(path string) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	w := bufio.NewWriterSize(f, 1<<20)
	var control bytes.Buffer
	text := "Package: large\nVersion: 1.0\nArchitecture: all\nMaintainer: Bench <bench@example.org>\nDescription: a large package\n"
	if err := tarOf(&control, "./control", int64(len(text)), bytes.NewReader([]byte(text))); err != nil {
		return err
	}
	// A tar of one file: its header, the content in whole blocks, two empty blocks.
	const dataSize = 512 + uploadSize + 1024
	io.WriteString(w, "!<arch>\n")
	member := func(name string, size int64) {
		fmt.Fprintf(w, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", name, 0, 0, 0, "100644", size)
	}
	member("debian-binary", 4)
	io.WriteString(w, "2.0\n")
	member("control.tar", int64(control.Len()))
	w.Write(control.Bytes())
	member("data.tar", dataSize)
	counted := &countingWriter{w: w}
	source := rand.NewChaCha8([32]byte{1})
	if err := tarOf(counted, "./srv/large", uploadSize, io.LimitReader(source, uploadSize)); err != nil {
		return err
	}
	if counted.n != dataSize {
		return fmt.Errorf("the data archive has %d bytes, want %d", counted.n, dataSize)
	}
	return w.Flush()
}

type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

func tarOf(w io.Writer, name string, size int64, r io.Reader) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, Format: tar.FormatGNU}); err != nil {
		return err
	}
	if _, err := io.Copy(t, r); err != nil {
		return err
	}
	return t.Close()
}
