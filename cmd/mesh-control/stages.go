package main

import (
	"context"
	"errors"
	"fmt"
)

// stage is a part of the program that runs until its ctx ends.
type stage struct {
	name string
	// run returns nil when ctx ended, and an error when it cannot go on.
	run func(ctx context.Context) error
}

// runStages runs all stages at once until ctx ends or one of them does, then
// stops them one after the other in the order given, waiting for each. The
// stages that others rely on stand at the end.
func runStages(ctx context.Context, stages []stage, stopping func()) error {
	type running struct {
		stop context.CancelFunc
		done chan error
	}
	ended := make(chan string, len(stages))
	parts := make([]running, len(stages))
	for i, s := range stages {
		own, stop := context.WithCancel(context.WithoutCancel(ctx))
		parts[i] = running{stop: stop, done: make(chan error, 1)}
		go func() {
			parts[i].done <- s.run(own)
			ended <- s.name
		}()
	}
	var errs []error
	select {
	case <-ctx.Done():
	case name := <-ended:
		errs = append(errs, fmt.Errorf("%s ended while it was needed", name))
	}
	stopping()
	for i, s := range stages {
		parts[i].stop()
		if err := <-parts[i].done; err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
	}
	return errors.Join(errs...)
}
