// Package lockcore defines what a lock service is, independent of where the locks are kept: the requests,
// leases, states and errors, the caller of a lease, and the Service that the API calls. It makes no decisions.
//
// lockcore/sets implements the Service over one or several node sets. Below it, lockcore/compose makes leases
// of one or several resources, and lockcore/redlock locks one resource on a quorum of nodes. lockcore/node
// defines what a node is; lockcore/replica is a node in Go over a store.
package lockcore
