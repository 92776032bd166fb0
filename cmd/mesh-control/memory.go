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
	var m memory
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			m.giveBack()
		}
	}
}

// memory remembers what was given back.
type memory struct {
	// kept is what the heap had after the last time, in bytes.
	kept uint64
	// again: the last look found that it had grown, so it may have been in the
	// middle of a burst.
	again bool
}

// giveBack does it when the heap is a tenth larger than what was kept, and once
// more at the next look. It returns whether it did. It costs a collection, which
// the runtime makes every two minutes in any case.
func (m *memory) giveBack() bool {
	grown := heapHeld() > m.kept+m.kept/10
	if !grown && !m.again {
		return false
	}
	m.again = grown
	debug.FreeOSMemory()
	m.kept = heapHeld()
	return true
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
