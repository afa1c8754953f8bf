// Package nodetest tests nodes: a conformance suite that uses a node through its
// interface alone (Run), a node in memory (Model), and a comparison of any node with
// that model over random commands (Differential).
//
// It is imported by tests only.
package nodetest
