package main

import (
	"context"

	"github.com/meshctl/mesh/host/apt"
	"github.com/meshctl/mesh/host/dnf"
	"github.com/meshctl/mesh/host/resource/pkg"
)

// reading counts how often a manager reads its database. It keeps the type of
// the manager visible through embedding, with all that the manager can do.
func reading(m pkg.Manager, reads *int) pkg.Manager {
	switch m := m.(type) {
	case *apt.Manager:
		return &countedApt{m, reads}
	case *dnf.Manager:
		return &countedDnf{m, reads}
	}
	return m
}

type countedApt struct {
	*apt.Manager
	reads *int
}

func (c *countedApt) Installed(ctx context.Context) ([]pkg.Installed, error) {
	*c.reads++
	return c.Manager.Installed(ctx)
}

type countedDnf struct {
	*dnf.Manager
	reads *int
}

func (c *countedDnf) Installed(ctx context.Context) ([]pkg.Installed, error) {
	*c.reads++
	return c.Manager.Installed(ctx)
}
