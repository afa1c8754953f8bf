// Package client is the Go client of fencelock: it takes leases over HTTP,
// keeps them alive, and tells the work that it runs when a lease is lost.
//
//	locks, err := client.New("http://127.0.0.1:8080")
//	…
//	err = locks.Do(ctx, "orders/42", func(ctx context.Context, l *client.Lease) error {
//		return pgguard.Do(ctx, pool, l.Resource(), l.Token(), func(tx pgx.Tx) error { … })
//	})
//
// The guarantee: while the context that Do gives is not cancelled, the lease is
// valid as far as this process can tell: validity is counted on the monotonic
// clock from before the request was sent, and the context is cancelled, with
// the cause ErrLeaseLost, a margin before it ends.
//
// Not promised: that the work stops in time. A process that is paused learns of
// the loss when it runs again, and code that does not look at its context never
// does. Pass the Token to storage that checks it.
package client
