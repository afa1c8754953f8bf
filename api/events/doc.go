// Package events is the stream of changes to the locks: GET /events and the console
// read it. It is a best-effort summary for people and dashboards, never a lock
// primitive: an event may be late, duplicated, or missing (a gap says so), and is
// outdated when it is read.
//
// Where events come from. A server publishes what its own clients do. It also publishes how leases ended
// whose TTL has passed, if it was the last server to grant or extend them. While any server of the cluster
// has a reader, the servers pass their events on to each other over the nodes (Relay). Nothing is inferred
// about the leases of a server that sends nothing.
//
// Cost. While no server has a reader, an event costs a few atomic reads. A few hundred events a second are
// still kept in a ring in memory, so that a new reader sees earlier events.
package events
