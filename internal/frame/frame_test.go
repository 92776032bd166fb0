package frame_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/frame"
)

func TestWhatWasWrittenIsReadHoweverTheBytesArrive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var sent []mesh.Frame
		var stream bytes.Buffer
		for range rapid.IntRange(0, 5).Draw(t, "frames") {
			body, err := json.Marshal(rapid.String().Draw(t, "body"))
			if err != nil {
				t.Fatal(err)
			}
			f := mesh.Frame{
				Type: mesh.FrameType(rapid.StringMatching(`[a-z]{1,12}`).Draw(t, "type")),
				Seq:  rapid.Uint64().Draw(t, "seq"),
				Body: body,
			}
			sent = append(sent, f)
			if err := frame.Write(&stream, f); err != nil {
				t.Fatal(err)
			}
		}
		var from io.Reader = &stream
		if rapid.Bool().Draw(t, "byte by byte") {
			from = iotest.OneByteReader(from)
		}
		reader := frame.NewReader(from)
		for i, want := range sent {
			got, err := reader.Read()
			if err != nil || got.Type != want.Type || got.Seq != want.Seq || !bytes.Equal(got.Body, want.Body) {
				t.Fatalf("frame %d is %+v, %v; want %+v", i, got, err, want)
			}
		}
		if f, err := reader.Read(); !errors.Is(err, io.EOF) {
			t.Fatalf("after the last frame there is %+v, %v", f, err)
		}
	})
}

func TestAStreamThatEndsInsideAFrameIsToldFromOneThatEndsBetweenFrames(t *testing.T) {
	var whole bytes.Buffer
	if err := frame.Write(&whole, mesh.Frame{Type: mesh.FrameHello}); err != nil {
		t.Fatal(err)
	}
	for length := range whole.Len() {
		want := io.ErrUnexpectedEOF
		if length == 0 {
			want = io.EOF
		}
		_, err := frame.NewReader(bytes.NewReader(whole.Bytes()[:length])).Read()
		if !errors.Is(err, want) {
			t.Errorf("after %d of %d bytes Read returned %v, want %v", length, whole.Len(), err, want)
		}
	}
}

func TestALengthAboveTheLimitIsRefusedBeforeAnythingElseIsRead(t *testing.T) {
	for _, length := range []uint32{mesh.FrameLimit + 1, 1<<31 + 1, 1<<32 - 1} {
		from := bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, length), make([]byte, 100)...))

		_, err := frame.NewReader(from).Read()

		if !errors.Is(err, frame.ErrTooLarge) {
			t.Errorf("a frame of %d bytes is answered with %v, want ErrTooLarge", length, err)
		}
	}
}

func TestMemoryGrowsWithWhatCameAndNotWithWhatWasClaimed(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		from := bytes.NewReader(append(binary.BigEndian.AppendUint32(nil, mesh.FrameLimit), "{}"...))
		if _, err := frame.NewReader(from).Read(); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("Read returned %v, want the end inside a frame", err)
		}
	}
	runtime.ReadMemStats(&after)

	if each := (after.TotalAlloc - before.TotalAlloc) / 100; each > 1<<20 {
		t.Errorf("two bytes that claim to be 16 MiB cost %d bytes of memory, want less than 1 MiB", each)
	}
}

func TestAFrameThatIsTooLargeIsNotBegun(t *testing.T) {
	var stream bytes.Buffer
	body, err := json.Marshal(strings.Repeat("x", mesh.FrameLimit))
	if err != nil {
		t.Fatal(err)
	}

	err = frame.Write(&stream, mesh.Frame{Type: mesh.FrameDeclare, Body: body})

	if !errors.Is(err, frame.ErrTooLarge) || stream.Len() != 0 {
		t.Errorf("Write returned %v after %d bytes, want ErrTooLarge and none, so that the stream can still be used", err, stream.Len())
	}
}

// sizes remembers how long the writes were.
type sizes struct{ longest int }

func (s *sizes) Write(p []byte) (int, error) {
	s.longest = max(s.longest, len(p))
	return len(p), nil
}

func TestNoWriteIsLongerThanFourKilobytes(t *testing.T) {
	var to sizes
	body, err := json.Marshal(strings.Repeat("x", 64<<10))
	if err != nil {
		t.Fatal(err)
	}
	if err := frame.Write(&to, mesh.Frame{Type: mesh.FrameDeclare, Body: body}); err != nil {
		t.Fatal(err)
	}

	if to.longest > 4<<10 {
		t.Errorf("a write of %d bytes makes the SSH library keep a buffer of that size for as long as the link lives", to.longest)
	}
}

func FuzzReader(f *testing.F) {
	var stream bytes.Buffer
	if err := frame.Write(&stream, mesh.Frame{Type: mesh.FrameEvent, Seq: 1, Body: json.RawMessage(`{"kind":"drift"}`)}); err != nil {
		f.Fatal(err)
	}
	f.Add(stream.Bytes())
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff})
	f.Add(append([]byte{0, 0, 0, 2}, "{}"...))
	f.Fuzz(func(t *testing.T, data []byte) {
		reader := frame.NewReader(bytes.NewReader(data))
		for {
			got, err := reader.Read()
			if err != nil {
				return
			}
			var again bytes.Buffer
			if err := frame.Write(&again, got); err != nil {
				t.Fatalf("what was read cannot be written: %v", err)
			}
			same, err := frame.NewReader(&again).Read()
			if err != nil || same.Type != got.Type || same.Seq != got.Seq {
				t.Fatalf("%+v was read, written and read again as %+v, %v", got, same, err)
			}
		}
	})
}
