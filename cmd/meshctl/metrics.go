package main

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	mesh "github.com/meshctl/mesh"
	"github.com/meshctl/mesh/control"
)

func newMetricsCommand(d deps) *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "Print what is applied, outstanding and failed as numbers for a monitoring system",
		Long: `Prints the facts of meshctl nodes, and how far each declaration has come, in the
text format of Prometheus (version 0.0.4), for the textfile collector of its
node exporter or for anything else that reads it.

What is outstanding and what failed are metrics of their own, and so is the last
contact. That is a time, from which the mesh itself concludes nothing: a machine
may be off for as long as its owner likes.

Nothing is printed unless everything was read.`,
		Example: `  meshctl metrics >mesh.prom.new && mv mesh.prom.new mesh.prom`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := d.client(cmd)
			nodes, err := client.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			declarations, err := client.Declarations(cmd.Context())
			if err != nil {
				return err
			}
			var progress []control.Progress
			for _, view := range declarations {
				if view.Removed {
					continue
				}
				p, err := client.Progress(cmd.Context(), view.Name, view.Revision)
				if err != nil {
					return err
				}
				progress = append(progress, p)
			}
			var text bytes.Buffer
			writeMetrics(&text, nodes, progress)
			if _, err := d.stdout.Write(text.Bytes()); err != nil {
				return fmt.Errorf("print the metrics: %w", err)
			}
			return nil
		},
	}
}

// A metric is a gauge with the values that it has, by their labels.
type metric struct {
	name, help string
	values     []metricValue
}

type metricValue struct {
	// labels are names and values in turn.
	labels []string
	value  float64
}

func (m *metric) set(value float64, labels ...string) {
	m.values = append(m.values, metricValue{labels, value})
}

// writeMetrics writes the text format of Prometheus, version 0.0.4. Of machines
// that left the mesh only the number is told.
func writeMetrics(w io.Writer, nodes []control.NodeView, progress []control.Progress) {
	states := metric{name: "mesh_nodes", help: "Machines by where they are in their life."}
	declared := metric{name: "mesh_node_declared_generation", help: "Newest generation that was written for the node; 0: none."}
	applied := metric{name: "mesh_node_applied_generation", help: "Newest generation that the node applied whole; 0: none."}
	outstanding := metric{name: "mesh_node_outstanding", help: "Generations that are written for the node and not decided: not yet held by it (undelivered), or held and not finished (delivered)."}
	failed := metric{name: "mesh_node_failed_resources", help: "Resources of the node that are not as declared."}
	eligible := metric{name: "mesh_node_eligible", help: "1 when the node may be given declarations, 0 when a line of its briefing failed."}
	contact := metric{name: "mesh_node_last_contact_timestamp_seconds", help: "When the node was last heard of, by the control plane's clock; a node that never was has none."}
	count := make(map[mesh.NodeState]int)
	for _, n := range nodes {
		count[n.State]++
		if !member(n) {
			continue
		}
		declared.set(float64(n.Declared), "node", n.Node)
		applied.set(float64(n.Applied), "node", n.Node)
		outstanding.set(float64(n.Outstanding.Undelivered), "node", n.Node, "state", "undelivered")
		outstanding.set(float64(n.Outstanding.Delivered), "node", n.Node, "state", "delivered")
		failed.set(float64(len(n.Failed)), "node", n.Node)
		if n.Eligible {
			eligible.set(1, "node", n.Node)
		} else {
			eligible.set(0, "node", n.Node)
		}
		if !n.LastContact.IsZero() {
			contact.set(float64(n.LastContact.UnixMilli())/1000, "node", n.Node)
		}
	}
	for _, state := range []mesh.NodeState{mesh.NodeEnrolled, mesh.NodeDisconnected, mesh.NodeRetired, mesh.NodeRevoked} {
		states.set(float64(count[state]), "state", string(state))
	}
	reach := metric{name: "mesh_declaration_nodes", help: "Nodes that the newest revision of the declaration concerns, by how far they have come with it."}
	revision := metric{name: "mesh_declaration_revision", help: "Newest revision of the declaration."}
	for _, p := range progress {
		revision.set(float64(p.Revision), "declaration", p.Declaration)
		reach.set(float64(p.Applied), "declaration", p.Declaration, "state", "applied")
		reach.set(float64(p.Undelivered), "declaration", p.Declaration, "state", "undelivered")
		reach.set(float64(p.Outstanding-p.Undelivered), "declaration", p.Declaration, "state", "delivered")
		reach.set(float64(p.Failed), "declaration", p.Declaration, "state", "failed")
	}
	for _, m := range []metric{states, declared, applied, outstanding, failed, eligible, contact, revision, reach} {
		m.write(w)
	}
}

// escaped is how the format writes the value of a label.
var escaped = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

func (m metric) write(w io.Writer) {
	if len(m.values) == 0 {
		return
	}
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n", m.name, m.help, m.name)
	for _, v := range m.values {
		var labels []string
		for i := 0; i+1 < len(v.labels); i += 2 {
			labels = append(labels, fmt.Sprintf(`%s="%s"`, v.labels[i], escaped.Replace(v.labels[i+1])))
		}
		fmt.Fprintf(w, "%s{%s} %s\n", m.name, strings.Join(labels, ","), strconv.FormatFloat(v.value, 'f', -1, 64))
	}
}
