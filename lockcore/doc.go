// Package lockcore is what a lock service is, whatever keeps its locks: the
// requests, leases, states and errors, the caller of a lease, and the Service that the
// API calls. It decides nothing.
//
// lockcore/redlock is the Service over quorums of nodes, lockcore/node what a node
// is, lockcore/replica a node in Go over a store.
package lockcore
