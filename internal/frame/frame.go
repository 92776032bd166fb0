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

	mesh "github.com/meshctl/mesh"
)

// ErrTooLarge: a frame is longer than mesh.FrameLimit. The stream cannot be
// used any more.
var ErrTooLarge = errors.New("frame is longer than the limit")

const (
	header = 4
	// envelope is more than what stands around a body.
	envelope = 1 << 10
	// chunk bounds a single write, so that the SSH library does not keep large
	// packet buffers for the life of the connection.
	chunk = 4 << 10
	// small is what a Reader holds for the life of a link: room for the head of a
	// frame, and for a heartbeat. A longer body is read past it.
	small = 512
	// readAhead bounds what is allocated before the bytes have come.
	readAhead = 64 << 10
)

// Fits reports whether Write takes the frame. Near the limit it errs on the
// side of no.
func Fits(f mesh.Frame) bool { return len(f.Body) <= mesh.FrameLimit-envelope }

// Write writes one frame, whose body is JSON. Callers serialise.
func Write(w io.Writer, f mesh.Frame) error {
	buf, err := encode(f)
	if err != nil {
		return err
	}
	for len(buf) > 0 {
		n := min(len(buf), chunk)
		if _, err := w.Write(buf[:n]); err != nil {
			return fmt.Errorf("write frame %s: %w", f.Type, err)
		}
		buf = buf[n:]
	}
	return nil
}

// encode returns a frame as it is written. The body, which may be long and goes
// to many, is taken as it is and not gone through again.
func encode(f mesh.Frame) ([]byte, error) {
	rest, err := json.Marshal(mesh.Frame{Type: f.Type, Seq: f.Seq})
	if err != nil {
		return nil, fmt.Errorf("marshal frame %s: %w", f.Type, err)
	}
	const name = `,"body":`
	size := len(rest)
	if len(f.Body) > 0 {
		size += len(name) + len(f.Body)
	}
	if size > mesh.FrameLimit {
		return nil, fmt.Errorf("frame %s of %d bytes: %w", f.Type, size, ErrTooLarge)
	}
	buf := make([]byte, header, header+size)
	binary.BigEndian.PutUint32(buf, uint32(size))
	if len(f.Body) == 0 {
		return append(buf, rest...), nil
	}
	buf = append(buf, rest[:len(rest)-1]...)
	buf = append(buf, name...)
	buf = append(buf, f.Body...)
	return append(buf, '}'), nil
}

// Reader reads frames from one stream.
type Reader struct {
	r *bufio.Reader
}

// NewReader makes a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{r: bufio.NewReaderSize(r, small)}
}

// Read returns the next frame; io.EOF when the stream ended between frames,
// io.ErrUnexpectedEOF when it ended inside one. Memory grows with what has
// arrived, not with the length that was claimed.
func (r *Reader) Read() (mesh.Frame, error) {
	var head [header]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return mesh.Frame{}, fmt.Errorf("read frame length: %w", err)
		}
		return mesh.Frame{}, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > mesh.FrameLimit {
		return mesh.Frame{}, fmt.Errorf("frame of %d bytes: %w", size, ErrTooLarge)
	}
	buf := make([]byte, 0, min(size, readAhead))
	for len(buf) < size {
		n := min(size-len(buf), readAhead)
		start := len(buf)
		buf = append(buf, make([]byte, n)...)
		if _, err := io.ReadFull(r.r, buf[start:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return mesh.Frame{}, fmt.Errorf("read frame body: %w", err)
		}
	}
	var f mesh.Frame
	if err := json.Unmarshal(buf, &f); err != nil {
		return mesh.Frame{}, fmt.Errorf("decode frame: %w", err)
	}
	if f.Type == "" {
		return mesh.Frame{}, errors.New("decode frame: it has no type")
	}
	return f, nil
}
