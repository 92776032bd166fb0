package stall_test

import (
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/meshctl/mesh/internal/stall"
)

func TestAReaderCutsOnSilenceAndNotWhileItsUserIsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		from, to := io.Pipe()
		r := stall.NewReader(from, 10*time.Second, func() { _ = from.CloseWithError(io.ErrClosedPipe) })
		defer r.Stop()
		go func() { _, _ = to.Write([]byte("x")) }()
		if _, err := r.Read(make([]byte, 1)); err != nil {
			t.Fatalf("what came at once was not read: %v", err)
		}
		time.Sleep(time.Hour) // the user works on what came
		if r.Silent() {
			t.Fatal("the time of its user counted as silence")
		}
		began := time.Now()
		if _, err := r.Read(make([]byte, 1)); err == nil || !r.Silent() {
			t.Errorf("silence was not cut: error %v, silent %v", err, r.Silent())
		}
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("it was cut after %v, not after 10s", waited)
		}
	})
}

func TestAWriterCutsAWriteThatMakesNoProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, to := io.Pipe() // nobody reads
		w := stall.NewWriter(to, 10*time.Second, func() { _ = to.Close() })
		began := time.Now()
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("a write that nobody takes succeeded")
		}
		if waited := time.Since(began); waited != 10*time.Second {
			t.Errorf("it was cut after %v, not after 10s", waited)
		}
	})
}
