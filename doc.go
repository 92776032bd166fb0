// Package mesh holds the nouns that the control plane and the host share, and
// the messages that travel between them: declarations, resources, reports,
// profiles, briefings, tokens, and the states that a node, a generation and a
// result can be in.
//
// It does no I/O and imports nothing beyond the standard library. How a noun
// is stored, sent, applied or shown is the business of the packages that
// import this one.
package mesh
