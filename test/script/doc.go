// Package script tells what an operator does and sees, as stories in testdata
// that run the real meshctl against a real mesh-control.
//
// It has no code of its own beside the tests. What happens on a node is told
// elsewhere: machines enrol here through the host's end of the link and are
// silent afterwards; nothing is applied anywhere.
package script
