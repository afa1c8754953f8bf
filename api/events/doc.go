// Package events is what a server tells of the locks as they change: GET /events
// and the console read it. It is a summary for people and dashboards, made of best
// efforts, and never a lock primitive: an event may be late, come twice, or be
// missing (a gap is told), and by the time it is read it is outdated.
//
// Where events come from. A server knows what its own clients do (Leases, Locks
// and Guard wrap what the API calls). While somebody listens to any server of the
// cluster, the servers pass theirs on over the nodes (Relay). Nobody asks the
// service when a lease ends by itself: a Follower keeps the deadlines, looks at
// the lock when one has passed, and goes through all locks now and then to find
// what nobody told.
//
// What it costs. While nobody listens anywhere, an event is a few atomic reads,
// and now and then (a few hundred a second at most) a place in a ring in memory,
// so that who opens the console sees a little of what went before.
package events
