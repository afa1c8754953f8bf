// Package waitqueue is one server's part of the queues for resources.
//
// The nodes keep the order among servers, as tickets: first come, first served by
// arrival. This server keeps a Waiter for every waiting request. Only the first of a
// resource asks the nodes again: when a quorum of nodes wakes it, when the lease in
// the way expires, and at growing intervals in case the wakes were lost. The others
// cost nothing while they wait.
//
// The guarantee: the waiters of one server are served in the order of their arrival,
// and a server that dies delays the others by three seconds at most, since its
// tickets expire that long after its last heartbeat. It assumes nothing for safety:
// a wake is a hint, and the lease is what a quorum grants. It does not promise the
// order of arrival among servers whose clocks differ, or after nodes lost their data.
package waitqueue
