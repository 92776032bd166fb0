package main

import (
	"runtime"
	"testing"
)

func TestWhatABurstTookIsGivenBackAndRestIsLeftAlone(t *testing.T) {
	kept := giveBack(0)
	burst := make([][]byte, 256)
	for i := range burst {
		burst[i] = make([]byte, 1<<20)
	}
	high := heapHeld()
	runtime.KeepAlive(burst)

	after := giveBack(kept)

	if now := heapHeld(); high < kept+200<<20 || now > kept+20<<20 {
		t.Errorf("a burst took the heap from %d bytes to %d, and it was left at %d", kept, high, now)
	}
	if again := giveBack(after); again != after {
		t.Errorf("a heap that has not grown was given back from: %d bytes, then %d", after, again)
	}
}
