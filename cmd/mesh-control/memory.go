package main

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// memoryEvery is how often it is looked whether memory can be given back.
const memoryEvery = time.Minute

// giveMemoryBack returns to the system what a burst took and rest does not need:
// a fleet that comes at once, a push. The runtime by itself keeps as much as the
// collector may use before it runs again. It returns nil when ctx ended.
func giveMemoryBack(ctx context.Context) error {
	ticker := time.NewTicker(memoryEvery)
	defer ticker.Stop()
	kept := uint64(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			kept = giveBack(kept)
		}
	}
}

// giveBack does it when the heap is a fifth larger than what was kept the last
// time, and returns what is kept from now on. It costs a collection, which the
// runtime makes every two minutes in any case.
func giveBack(kept uint64) uint64 {
	if heapHeld() <= kept+kept/5 {
		return kept
	}
	debug.FreeOSMemory()
	return heapHeld()
}

// heapHeld is what the heap has of the system, in bytes.
func heapHeld() uint64 {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	held := uint64(0)
	for _, s := range samples {
		held += s.Value.Uint64()
	}
	return held
}
