// Package waitqueue is one server's part of the queues before resources.
//
// The order among servers is kept on the nodes, as tickets: first come, first
// served by arrival. Here every waiting request has its Waiter. Only the first of
// a resource asks the nodes again: when a quorum of nodes wakes it, when the lease
// in the way ends, and at growing intervals in case the wakes were lost. The
// others cost nothing while they wait.
//
// A server's tickets live for three seconds after its last heartbeat, so that the
// nodes pass over the waiters of a server that died.
package waitqueue
