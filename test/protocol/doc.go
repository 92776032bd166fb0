// Package protocol holds the promise of the wire: transcripts of what was said
// by releases, replayed against both ends of today's link, and tests of the
// two ends against each other over networks that cut, stall and come back.
//
// It tests what travels and in which order. What a control plane decides and
// what a host does with a declaration are tested in their own rooms.
package protocol
