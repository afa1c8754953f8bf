// Package waitqueue is one server's part of the queues for resources.
//
// The nodes keep the order among servers, as tickets: first come, first served by arrival. This server
// keeps a Waiter for every waiting request. Only the first Waiter of a resource sends requests to the
// nodes: when a quorum of nodes wakes it, when the present lease expires, and at growing intervals in
// case wakes were lost. The other Waiters cost nothing while they wait.
//
// The guarantee: the waiters of one server are served in the order of their arrival, and a server that
// dies delays the waiters of other servers by at most three seconds, because its tickets expire that long
// after its last heartbeat. Safety does not depend on this package: a wake is only a hint, and a lease
// needs a quorum's grant. The package does not promise the order of arrival among servers whose clocks
// differ, or after nodes lost their data.
package waitqueue
