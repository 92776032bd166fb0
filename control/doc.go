// Package control is the control plane's policy: who may join, which node gets
// which declaration and when, and what is believed of a report.
//
// It speaks no protocol and stores nothing itself: links, the operator API,
// the compiler of declarations and the store are given to it.
package control
