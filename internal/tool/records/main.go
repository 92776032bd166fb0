// Command records checks the decision records in adr and the documents in
// docs that rest on them, prints every finding with file and line, and exits
// 1 when there is one. It changes nothing.
package main

import (
	"fmt"
	"os"

	"github.com/meshctl/mesh/adr"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	result, err := adr.Check(os.DirFS(root))
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot check the records below %s: %v\n", root, err)
		os.Exit(2)
	}
	for _, finding := range result.Findings {
		fmt.Fprintln(os.Stderr, finding)
	}
	fmt.Printf("%d records, %d documents, %d findings\n", result.Records, result.Documents, len(result.Findings))
	if len(result.Findings) > 0 {
		os.Exit(1)
	}
}
