// Package api is the operator's door to the control plane: HTTP and JSON under
// /v1/ on a unix socket, and the Go client of it.
//
// It decides who may come in, bounds and strictly decodes what is sent, and
// turns errors into answers. It makes no decision about nodes, declarations or
// packages: those are asked of an Operator and a Publisher.
package api
