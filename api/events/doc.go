// Package events is the stream of changes to the locks: GET /events and the console
// read it. It is a best-effort summary for people and dashboards, never a lock
// primitive: an event may be late, duplicated, or missing (a gap says so), and is
// outdated when it is read.
//
// Where events come from. A server publishes what its own clients do, and how the leases
// ended that it granted or extended last and whose TTL has passed. While events are read at
// any server of the cluster, the servers pass theirs on over the nodes (Relay). Nothing is
// inferred about leases of a server that said nothing.
//
// Cost. While no reader is connected anywhere, an event costs a few atomic reads, and
// a few hundred events a second take a place in a ring in memory, so that a new
// reader sees earlier events.
package events
