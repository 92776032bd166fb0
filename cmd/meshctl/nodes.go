package main

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
	"github.com/meshctl/mesh/internal/cli"
)

func newNodesCommand(d deps) *cobra.Command {
	var some selection
	var labels []string
	cmd := &cobra.Command{
		Use:   "nodes [NAME...]",
		Short: "List the nodes: what is applied, outstanding and failed, and the last contact",
		Long: `Lists every node with the newest generation that it applied whole, what is
outstanding, how many resources failed, and when it was last heard of.

Outstanding is not failed: "undelivered" has not reached the node, "delivered"
has and is not finished. The last contact is a fact and no judgement: a machine
may be off for as long as its owner likes. A note says what else there is to know
of a node: that it is leaving, or that a machine which was revoked may still be
running its last declaration.

NAMEs are names of nodes, or patterns of them with *, ? and [...]. With --failed
only nodes are listed on which something failed, with --outstanding only those on
which something is outstanding, and with both those of either kind. The last line
counts what is listed.

With -o json the same facts come as a list of objects with the names node, state,
labels, declared, held, applied, outstanding {undelivered, delivered}, failed
[{resource, status, reason, detail}], last_contact (null: never), eligible,
retiring, ahead (see mesh-control recover), unheard (since a restore) and note.`,
		Example: `  meshctl nodes
  meshctl nodes --failed --outstanding
  meshctl nodes 'web-*' --label site=ams
  meshctl nodes -o json`,
	}
	cmd.Flags().BoolVar(&some.failed, "failed", false, "only nodes on which something failed")
	cmd.Flags().BoolVar(&some.outstanding, "outstanding", false, "only nodes on which something is outstanding")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "only nodes with this label, `KEY=VALUE`; may be repeated, and all must match")
	form := cli.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		f, err := form()
		if err != nil {
			return err
		}
		if some.labels, err = parseLabels(cmd, labels); err != nil {
			return err
		}
		for _, name := range args {
			if _, err := path.Match(name, ""); err != nil {
				return cli.Usagef(cmd, "%q is no pattern of names: a [ has no ]", name)
			}
		}
		some.names = args
		all, err := d.client(cmd).Nodes(cmd.Context())
		if err != nil {
			return err
		}
		nodes, err := some.of(all)
		if err != nil {
			return err
		}
		if f == cli.FormatJSON {
			return d.printNodesJSON(nodes)
		}
		return d.printNodes(nodes, len(all))
	}
	return cmd
}

// selection says which nodes are listed. Its zero value takes all.
type selection struct {
	// names are names of nodes, or patterns of path.Match. Empty: any.
	names []string
	// failed and outstanding take only nodes of the one kind, or of either.
	failed, outstanding bool
	// labels must all be there with their values.
	labels map[string]string
}

// of returns the nodes that are selected. A name that no node has is an error:
// who asks for it by name would take silence for an answer.
func (s selection) of(all []control.NodeView) ([]control.NodeView, error) {
	nodes := []control.NodeView{}
	met := make([]bool, len(s.names))
	for _, n := range all {
		named := len(s.names) == 0
		for i, name := range s.names {
			if ok, err := path.Match(name, n.Node); err == nil && ok {
				named, met[i] = true, true
			}
		}
		if named && s.kind(n) && s.labelled(n) {
			nodes = append(nodes, n)
		}
	}
	var ps mesh.Problems
	for i, name := range s.names {
		if !met[i] {
			ps.Add("", fmt.Sprintf("there is no node %q", name))
		}
	}
	if len(ps) > 0 {
		return nil, &mesh.Error{Code: mesh.CodeNotFound, Message: "not every node that was asked for is there; meshctl nodes lists all", Details: ps}
	}
	return nodes, nil
}

func (s selection) kind(n control.NodeView) bool {
	return !s.failed && !s.outstanding || s.failed && len(n.Failed) > 0 || s.outstanding && open(n)
}

func (s selection) labelled(n control.NodeView) bool {
	for key, value := range s.labels {
		if have, there := n.Labels[key]; !there || have != value {
			return false
		}
	}
	return true
}

// open reports whether something is outstanding on the node.
func open(n control.NodeView) bool { return n.Outstanding.Undelivered+n.Outstanding.Delivered > 0 }

// nodeJSON is the stable form of one node.
type nodeJSON struct {
	Node        string                  `json:"node"`
	State       mesh.NodeState          `json:"state"`
	Labels      map[string]string       `json:"labels,omitempty"`
	Declared    mesh.Generation         `json:"declared"`
	Held        mesh.Generation         `json:"held"`
	Applied     mesh.Generation         `json:"applied"`
	Outstanding control.OutstandingView `json:"outstanding"`
	Failed      []control.FailedView    `json:"failed"`
	// LastContact is null when there was none.
	LastContact *time.Time `json:"last_contact"`
	Eligible    bool       `json:"eligible"`
	Retiring    bool       `json:"retiring,omitempty"`
	Ahead       bool       `json:"ahead,omitempty"`
	Unheard     bool       `json:"unheard,omitempty"`
	Note        string     `json:"note,omitempty"`
}

func (d deps) printNodesJSON(nodes []control.NodeView) error {
	list := make([]nodeJSON, len(nodes))
	for i, n := range nodes {
		list[i] = nodeJSON{Node: n.Node, State: n.State, Labels: n.Labels, Declared: n.Declared, Held: n.Held, Applied: n.Applied,
			Outstanding: n.Outstanding, Failed: append([]control.FailedView{}, n.Failed...), Eligible: n.Eligible, Retiring: n.Retiring, Ahead: n.Ahead, Unheard: n.Unheard, Note: n.Note}
		if !n.LastContact.IsZero() {
			list[i].LastContact = &n.LastContact
		}
	}
	return printJSON(d.stdout, list)
}

// printNodes prints what was selected of all nodes.
func (d deps) printNodes(nodes []control.NodeView, all int) error {
	switch {
	case len(nodes) == 0 && all > 0:
		fmt.Fprintf(d.stdout, "0 of %s\n", count(all, "node", "nodes"))
		return nil
	case len(nodes) == 0:
		fmt.Fprintln(d.stdout, "0 nodes")
		fmt.Fprintln(d.stderr, "no machine has joined yet; `meshctl token issue` shows how one does")
		return nil
	}
	now := d.now()
	rows := make([][]string, len(nodes))
	header := "NODE|STATE|APPLIED|OUTSTANDING|FAILED|LAST CONTACT"
	if slices.ContainsFunc(nodes, func(n control.NodeView) bool { return n.Note != "" }) {
		header += "|NOTE"
	}
	for i, n := range nodes {
		rows[i] = []string{n.Node, string(n.State), n.Applied.String(), outstanding(n.Outstanding), failedCount(len(n.Failed)), stampAgo(n.LastContact, now)}
		if n.Note != "" {
			rows[i] = append(rows[i], n.Note)
		}
	}
	if err := table(d.stdout, header, rows); err != nil {
		return err
	}
	fmt.Fprintln(d.stdout, summary(nodes))
	for _, n := range nodes {
		if !n.Eligible && member(n) {
			fmt.Fprintf(d.stderr, "%s gets no declarations, since a line of its briefing failed: see `meshctl node show %s`\n", cli.Clean(n.Node), cli.Clean(n.Node))
		}
	}
	return nil
}

// outstanding keeps what has not arrived apart from what is not finished.
func outstanding(o control.OutstandingView) string {
	var parts []string
	if o.Undelivered > 0 {
		parts = append(parts, fmt.Sprintf("%d undelivered", o.Undelivered))
	}
	if o.Delivered > 0 {
		parts = append(parts, fmt.Sprintf("%d delivered", o.Delivered))
	}
	return orDash(strings.Join(parts, ", "))
}

func failedCount(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// member reports whether a machine is still a node of the mesh.
func member(n control.NodeView) bool {
	return n.State == mesh.NodeEnrolled || n.State == mesh.NodeDisconnected
}

// summary counts nodes. One with something outstanding and something failed
// counts in both; one that was never given anything counts in neither.
func summary(nodes []control.NodeView) string {
	var members, applied, waiting, failed, bare, left int
	for _, n := range nodes {
		if !member(n) {
			left++
			continue
		}
		members++
		if open(n) {
			waiting++
		}
		if len(n.Failed) > 0 {
			failed++
		}
		switch {
		case open(n) || len(n.Failed) > 0:
		case n.Declared == 0:
			bare++
		case n.Applied == n.Declared:
			applied++
		}
	}
	s := fmt.Sprintf("%s: %d applied, %d outstanding, %d failed", count(members, "node", "nodes"), applied, waiting, failed)
	if bare > 0 {
		s += fmt.Sprintf(", %d without a declaration", bare)
	}
	if left > 0 {
		s += fmt.Sprintf("; %d left the mesh", left)
	}
	return s
}
