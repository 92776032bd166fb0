package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/meshctl/mesh/internal/cli"
)

// table prints rows in columns that are at least eight wide and two apart. A
// column that ends a row has no padding.
func table(w io.Writer, header string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 8, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.ReplaceAll(header, "|", "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = cli.Clean(row[i])
		}
		fmt.Fprintln(tw, strings.Join(row, "\t"))
	}
	return tw.Flush()
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// stamp writes a time as operators read it; zero: "never".
func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format("2006-01-02 15:04:05Z")
}

// ago writes how long before now t was, in its greatest unit.
func ago(t, now time.Time) string {
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", d/time.Minute)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh ago", d/time.Hour)
	default:
		return fmt.Sprintf("%dd ago", d/(24*time.Hour))
	}
}

func stampAgo(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return stamp(t) + "  (" + ago(t, now) + ")"
}

// orDash writes what is not there as a dash.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// count writes a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
