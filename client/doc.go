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
// Without Wait a call waits as long as its context allows. Errors match, by errors.Is, ErrHeld (another has the resource:
// try later), ErrUnavailable (safe to repeat), ErrLeaseLost (stop, and acquire again; a stale token matches it, too),
// ErrDenied, ErrInvalid and ErrClosed. Close waits until all work has released its leases: for SIGTERM.
//
// The guarantee: while the context that Do gives is not cancelled, the lease is
// valid as far as this process knows: validity is counted on the monotonic
// clock from before the request was sent, and the context is cancelled, with
// the cause ErrLeaseLost, a margin before it ends.
//
// It outlives restarts and failures of servers: a call goes to the next server
// when one does not answer, and is repeated with the same idempotency key, so
// that a lost answer is not a lost lease (see WithPatience). A wait in the queue is a
// series of polls that keep the place, shorter than the time limits of proxies, so that
// it outlives its server, too, and a load balancer may be in between. A live lease is kept for as long as any
// server answers before its margin begins.
//
// A guard takes the lease with all of its resources (package pgguard, mysqlguard). The
// service's own guarded records are ReadRecord, ClaimRecord, WriteRecord, DeleteRecord and
// History. Package fencelocktest has a service in memory, for the tests of an application.
//
// Not promised: that the work stops in time. A process that is paused learns of
// the loss when it runs again, and code that does not look at its context never
// does. The monotonic clock of most systems stands still while a whole machine is
// suspended. Pass the Token to storage that checks it.
package client
