package main

import (
	"runtime"
	"testing"
)

func TestWhatABurstTookIsGivenBackAndRestIsLeftAlone(t *testing.T) {
	var m memory
	m.giveBack()
	m.giveBack()
	before := m.kept
	burst := make([][]byte, 256)
	for i := range burst {
		burst[i] = make([]byte, 1<<20)
	}
	if !m.giveBack() || m.kept < before+200<<20 {
		t.Errorf("in the middle of a burst %d bytes are kept, %d before it", m.kept, before)
	}
	runtime.KeepAlive(burst)

	if !m.giveBack() || m.kept > before+20<<20 {
		t.Errorf("after a burst %d bytes are kept, %d before it", m.kept, before)
	}

	if m.giveBack() {
		t.Errorf("a heap that has not grown is gone through again: it has %d bytes, %d were kept", heapHeld(), m.kept)
	}
}
