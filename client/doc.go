// Package client is the Go client of fencelock: it takes leases over HTTP,
// keeps them alive, and cancels the work's context when a lease is lost.
//
//	locks, err := client.New([]string{"https://locks-1:8080", "https://locks-2:8080"},
//		client.WithBearerTokenFile("/run/secrets/fencelock"))
//	…
//	err = locks.Do(ctx, "orders/42", func(ctx context.Context, l *client.Lease) error {
//		return pgguard.Do(ctx, pool, l, func(tx pgx.Tx) error { … })
//	})
//
// Without Wait, a call waits as long as its context allows. Match errors with errors.Is: ErrHeld (another lease
// holds the resource: try later), ErrUnavailable (safe to repeat), ErrLeaseLost (stop, and acquire again; a
// stale token matches it, too), ErrDenied, ErrInvalid and ErrClosed. Close waits until all work has released
// its leases; call it on SIGTERM.
//
// The guarantee: while the context that Do gives is not cancelled, the lease is
// valid as far as this process knows: validity is counted on the monotonic
// clock from before the request was sent, and the context is cancelled, with
// the cause ErrLeaseLost, a margin before it ends.
//
// A burst of calls opens at most 256 connections to a server. Further calls wait in the client, and their time
// limit begins when they are sent. Extensions of leases use connections of their own.
//
// The client survives restarts and failures of servers. If a server does not respond, the call goes to the next
// one and is repeated with the same idempotency key, so that a lost response is not a lost lease (see
// WithPatience). A wait in the queue is a series of polls that keep the place. A poll is shorter than the time
// limits of proxies, so a wait works through a load balancer and survives its server. A live lease is kept as
// long as any server responds before its margin begins.
//
// A guard (package pgguard, mysqlguard) takes the lease with all of its resources. The methods for the
// service's own guarded records are ReadRecord, ClaimRecord, WriteRecord, DeleteRecord and History. The package
// fencelocktest starts a server in the tests of an application.
//
// Not promised: that the work stops in time. A process that was paused learns of the loss only when it
// continues, and code that ignores its context never does. On most systems the monotonic clock stops while the
// machine is suspended. So pass the Token to storage that checks it.
package client
