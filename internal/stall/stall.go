// Package stall cuts a connection on which a read or a write makes no progress.
//
// It knows no protocol, and it does not decide how long is too long.
package stall

import (
	"io"
	"sync/atomic"
	"time"
)

// Reader reads and calls cut when nothing comes for as long as its patience.
// The time that its user spends on what came does not count. Make it with
// NewReader, and Stop it when nothing more is read.
type Reader struct {
	// Patience may be changed between two reads, by the goroutine that reads.
	Patience time.Duration

	from    io.Reader
	silence *time.Timer
	silent  atomic.Bool
}

// NewReader makes a Reader, whose patience begins at once.
func NewReader(from io.Reader, patience time.Duration, cut func()) *Reader {
	r := &Reader{Patience: patience, from: from}
	r.silence = time.AfterFunc(patience, func() {
		r.silent.Store(true)
		cut()
	})
	return r
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	r.silence.Reset(r.Patience)
	n, err := r.from.Read(p)
	r.silence.Stop()
	return n, err
}

// Silent reports whether the connection was cut for silence.
func (r *Reader) Silent() bool { return r.silent.Load() }

// Stop ends the wait.
func (r *Reader) Stop() { r.silence.Stop() }

// Writer writes and calls cut when a write makes no progress for as long as its
// patience. Make it with NewWriter.
type Writer struct {
	to       io.Writer
	patience time.Duration
	cut      func()
	timer    *time.Timer
}

// NewWriter makes a Writer.
func NewWriter(to io.Writer, patience time.Duration, cut func()) *Writer {
	return &Writer{to: to, patience: patience, cut: cut}
}

// Write implements io.Writer. Writes should be small.
func (w *Writer) Write(data []byte) (int, error) {
	if w.timer == nil {
		w.timer = time.AfterFunc(w.patience, w.cut)
	} else {
		w.timer.Reset(w.patience)
	}
	n, err := w.to.Write(data)
	w.timer.Stop()
	return n, err
}
