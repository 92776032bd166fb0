// Package assign compiles named declarations into what each node gets: it
// evaluates select and when over what is known of a node, fills templates in,
// and finds resources that two declarations claim.
//
// It reads nothing and stores nothing. The same documents and the same facts
// give the same resources, and what was computed once is kept with the
// documents that it came from.
package assign
