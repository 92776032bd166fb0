package api

import (
	"context"

	"github.com/meshctl/mesh/control"
)

// WithCaller marks a request's context with who asks, as a door does.
func WithCaller(ctx context.Context, c control.Caller) context.Context {
	return context.WithValue(ctx, callerKey{}, admitted(func() (control.Caller, error) { return c, nil }))
}
