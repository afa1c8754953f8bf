// Package nodetest holds what every lockcore.Node is tested with: a
// conformance suite that looks at a node through its interface alone (Run), a
// node that is a plain state machine in memory (Model), and a comparison of any
// node with that model over random commands (Differential).
//
// It is imported by tests only.
package nodetest
