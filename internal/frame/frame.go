// Package frame reads and writes the frames of the link: four bytes of
// big-endian length, then one mesh.Frame as JSON.
//
// It knows no connection, no order of messages and no meaning of a body.
package frame

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/jsoncut"
)

// ErrTooLarge: a frame is longer than mesh.FrameLimit. The stream cannot be
// used any more.
var ErrTooLarge = errors.New("frame is longer than the limit")

// Chunk bounds a single write to an SSH channel, in bytes, so that the library
// does not keep large packet buffers for the life of the connection. As a packet
// it still fits into the 4 KiB that the library collects before it writes to the
// network.
const Chunk = 4<<10 - 64

const (
	header = 4
	// envelope is more than what stands around a body.
	envelope = 1 << 10
	// small is what a Reader holds for the life of a link: room for the head of a
	// frame, and for a heartbeat. A longer body is read past it.
	small = 512
	// readAhead bounds what is allocated before the bytes have come. A file of
	// mesh.InlineLimit fits into it.
	readAhead = 128 << 10
)

// Fits reports whether Write takes the frame. Near the limit it errs on the
// side of no.
func Fits(f mesh.Frame) bool { return len(f.Body) <= mesh.FrameLimit-envelope }

// Write writes one frame, whose body is JSON. Callers serialise.
func Write(w io.Writer, f mesh.Frame) error { return WriteParts(w, f.Type, f.Seq, f.Body) }

// WriteParts writes one frame with the JSON that the parts of its body come to,
// one after the other; none: no body. The body, which may be long and goes to
// many, is taken as it is and not gone through again. Callers serialise.
func WriteParts(w io.Writer, t mesh.FrameType, seq uint64, body ...[]byte) error {
	head, err := json.Marshal(mesh.Frame{Type: t, Seq: seq})
	if err != nil {
		return fmt.Errorf("marshal frame %s: %w", t, err)
	}
	const name, last = `,"body":`, `}`
	size := 0
	for _, part := range body {
		size += len(part)
	}
	parts := [][]byte{make([]byte, header), head}
	if size > 0 {
		size += len(name)
		parts[1] = append(head[:len(head)-1], name...)
		parts = append(append(parts, body...), []byte(last))
	}
	if size += len(head); size > mesh.FrameLimit {
		return fmt.Errorf("frame %s of %d bytes: %w", t, size, ErrTooLarge)
	}
	binary.BigEndian.PutUint32(parts[0], uint32(size))
	if err := inChunks(w, parts); err != nil {
		return fmt.Errorf("write frame %s: %w", t, err)
	}
	return nil
}

// chunks holds what parts are put together in.
var chunks = sync.Pool{New: func() any { return new([Chunk]byte) }}

// inChunks writes the parts as one, in writes that are full but for the last.
func inChunks(w io.Writer, parts [][]byte) error {
	buf := chunks.Get().(*[Chunk]byte)
	defer chunks.Put(buf)
	n := 0
	for _, part := range parts {
		for len(part) > 0 {
			taken := copy(buf[n:], part)
			part = part[taken:]
			if n += taken; n < Chunk {
				continue
			}
			if _, err := w.Write(buf[:]); err != nil {
				return err
			}
			n = 0
		}
	}
	if n == 0 {
		return nil
	}
	_, err := w.Write(buf[:n])
	return err
}

// Reader reads frames from one stream.
type Reader struct {
	r *bufio.Reader
}

// NewReader makes a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, small)}
}

// Wait returns when the next frame has begun to come, with the length of its
// JSON in bytes, as it is claimed; the errors are those of Read. It takes little
// of the stack: the readers of a whole fleet wait in it.
func (r *Reader) Wait() (length int, err error) {
	head, err := r.r.Peek(header)
	if err != nil {
		return 0, noLength(head, err)
	}
	return int(binary.BigEndian.Uint32(head)), nil
}

// Read returns the next frame; io.EOF when the stream ended between frames,
// io.ErrUnexpectedEOF when it ended inside one. Memory grows with what has
// arrived, not with the length that was claimed.
func (r *Reader) Read() (mesh.Frame, error) {
	size, err := r.Wait()
	if err != nil {
		return mesh.Frame{}, err
	}
	if _, err := r.r.Discard(header); err != nil {
		return mesh.Frame{}, fmt.Errorf("read frame length: %w", err)
	}
	if size > mesh.FrameLimit {
		return mesh.Frame{}, fmt.Errorf("frame of %d bytes: %w", size, ErrTooLarge)
	}
	var buf []byte
	for len(buf) < size {
		start := len(buf)
		n := min(size-start, readAhead)
		buf = slices.Grow(buf, n)[:start+n]
		if _, err := io.ReadFull(r.r, buf[start:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return mesh.Frame{}, fmt.Errorf("read frame body: %w", err)
		}
	}
	var f mesh.Frame
	envelope, body := jsoncut.Member(buf, "body")
	if err := json.Unmarshal(envelope, &f); err != nil {
		return mesh.Frame{}, fmt.Errorf("decode frame: %w", err)
	}
	if body != nil {
		f.Body = body
	}
	if f.Type == "" {
		return mesh.Frame{}, errors.New("decode frame: it has no type")
	}
	return f, nil
}

// noLength makes the error of a frame whose length did not come whole.
func noLength(head []byte, err error) error {
	if len(head) == 0 {
		return err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read frame length: %w", err)
}
