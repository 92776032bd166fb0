package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/internal/version"
)

// PackageUse is a version of a package that must stay installable, and who says so.
type PackageUse struct {
	Name string `json:"name"`
	// Version is exact, as the package database writes it.
	Version string `json:"version"`
	// By names the declaration or the node, for people.
	By string `json:"by"`
}

// PackageUses lists every version of a package that a declaration names, that a
// node is to have by its newest generation, or that a node reports as installed;
// the version of the host that a node runs counts as installed, and so does the
// one that it would go back to. Nodes that left the mesh use nothing.
func (c *Control) PackageUses(ctx context.Context) ([]PackageUse, error) {
	var uses []PackageUse
	named := func(by string, r mesh.Resource) {
		if r.Package != nil && r.Package.Version != "" {
			uses = append(uses, PackageUse{Name: r.Name, Version: r.Package.Version, By: by})
		}
	}
	revisions, err := c.store.Declarations(ctx)
	if err != nil {
		return nil, fmt.Errorf("read declarations: %w", err)
	}
	for _, r := range revisions {
		if r.Removed {
			continue
		}
		for _, resource := range r.Document.Resources {
			named("declaration "+r.Name, resource.Resource)
		}
	}
	for _, n := range c.members() {
		for _, g := range []mesh.Generation{n.Declared, n.Applied} {
			if g == 0 {
				continue
			}
			d, err := c.store.Compiled(ctx, n.Name, g)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read what %s should have: %w", n.Name, err)
			}
			for _, r := range d.Resources {
				named("node "+n.Name+", declared", r)
			}
		}
		inventory, err := c.store.Inventory(ctx, n.Name)
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, fmt.Errorf("read inventory of %s: %w", n.Name, err)
		}
		for _, p := range inventory.Packages {
			uses = append(uses, PackageUse{Name: p.Name, Version: p.Version, By: "node " + n.Name + ", installed"})
		}
		uses = append(uses, hostUses(n, inventory.Host)...)
	}
	return uses, nil
}

// hostUses are the versions of its own package that the host of a node needs.
func hostUses(n node, says *mesh.HostUpgrade) []PackageUse {
	// The program that greets says its version without the package's release.
	running, confirmed := n.HostVersion+"-"+version.Release, ""
	if says != nil {
		running, confirmed = says.Running, says.Confirmed
	}
	uses := []PackageUse{{Name: hostPackage, Version: running, By: "node " + n.Name + ", running"}}
	if confirmed != "" {
		uses = append(uses, PackageUse{Name: hostPackage, Version: confirmed, By: "node " + n.Name + ", to go back to"})
	}
	return uses
}

// hostPackage is the name of the package that the host comes in.
const hostPackage = "mesh-host"

// members returns the nodes that have not left the mesh, by name.
func (c *Control) members() []node {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []node
	for _, name := range slices.Sorted(maps.Keys(c.nodes)) {
		if n := c.nodes[name]; n.State == mesh.NodeEnrolled {
			out = append(out, *n)
		}
	}
	return out
}

// Lacking returns the nodes of the mesh on which no verified file has the
// content with this SHA-256, as far as they reported.
func (c *Control) Lacking(ctx context.Context, sha256 string) ([]string, error) {
	lacking := []string{}
	for _, n := range c.members() {
		has, err := c.hasFile(ctx, n, sha256)
		if err != nil {
			return nil, fmt.Errorf("look for a file on %s: %w", n.Name, err)
		}
		if !has {
			lacking = append(lacking, n.Name)
		}
	}
	return lacking, nil
}

func (c *Control) hasFile(ctx context.Context, n node, sha256 string) (bool, error) {
	if n.Reported == 0 {
		return false, nil
	}
	d, err := c.store.Compiled(ctx, n.Name, n.Reported)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	want := map[mesh.ResourceID]string{}
	for _, r := range d.Resources {
		if r.File != nil && r.File.SHA256 == sha256 {
			want[r.ID()] = r.Digest()
		}
	}
	if len(want) == 0 {
		return false, nil
	}
	results, err := c.store.Results(ctx, n.Name)
	if err != nil {
		return false, err
	}
	for _, r := range results {
		if digest, ok := want[r.Resource]; ok && r.Status.Good() && r.Want == digest {
			return true, nil
		}
	}
	return false, nil
}

// PackageTool is what a node reads package files with.
type PackageTool struct {
	Node string
	// OS is the id of the distribution.
	OS string
	// Tool is dpkg or rpm, Version as the package database writes it.
	Tool, Version string
}

// PackageTools says what the nodes of the mesh read package files with, as far
// as their inventories tell.
func (c *Control) PackageTools(ctx context.Context) ([]PackageTool, error) {
	var tools []PackageTool
	for _, n := range c.members() {
		inventory, err := c.store.Inventory(ctx, n.Name)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read inventory of %s: %w", n.Name, err)
		}
		tool := "dpkg"
		if n.Profile.OS.Family == "rpm" {
			tool = "rpm"
		}
		for _, p := range inventory.Packages {
			if p.Name == tool {
				tools = append(tools, PackageTool{Node: n.Name, OS: n.Profile.OS.ID, Tool: tool, Version: p.Version})
			}
		}
	}
	return tools, nil
}
