// Command orders-go is a small web backend: POST /orders/{id}/charge takes the
// order's lock, reads the order, and writes it guarded.
//
//	DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 PORT=3000 go run ./examples/orders-go
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// The client retries an acquire under one Idempotency-Key, counts the lease's validity from the time it
// sent the request, and tries the next server when one does not respond in time. If a request is cancelled,
// it releases the lease that may have been granted.
const (
	wait   = 15 * time.Second // in the queue for an order
	answer = 2 * time.Second
)

type backend struct {
	locks *client.Client
	pool  *pgxpool.Pool
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	locks, err := client.New(strings.Split(os.Getenv("FENCELOCK_URL"), ","), client.WithTimeout(answer)) // one server, or several with commas
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	listener, err := net.Listen("tcp", "127.0.0.1:"+os.Getenv("PORT"))
	if err != nil {
		return err
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	mux := http.NewServeMux()
	mux.HandleFunc("POST /orders/{id}/charge", (&backend{locks: locks, pool: pool}).charge)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: answer}
	return server.Serve(listener)
}

func (b *backend) charge(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.Atoi(r.PathValue("id"))
	if err != nil {
		http.Error(w, "an order is a number", http.StatusBadRequest)
		return
	}
	resource, charges := fmt.Sprintf("orders/%d", id), 0
	err = b.locks.Do(r.Context(), resource, func(ctx context.Context, l *client.Lease) error {
		charges, err = b.charged(ctx, resource, l.Token(), id)
		return err
	}, client.Wait(wait))
	switch {
	case err == nil:
		_, _ = fmt.Fprintf(w, "{\"charges\":%d}\n", charges)
	case errors.Is(err, fencing.ErrStaleToken): // another lease was used in the meantime: nothing was written
		http.Error(w, "the order changed hands, try again", http.StatusConflict)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}

// charged reads the order and writes it back. With the token, PostgreSQL refuses the write if another lease
// of the order was used in the meantime, however late this process is.
func (b *backend) charged(ctx context.Context, resource string, token fencing.Token, id int) (charges int, err error) {
	err = pgguard.Do(ctx, b.pool, fencing.Claim{Resource: resource, Token: token}, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT charges FROM orders WHERE id = $1`, id).Scan(&charges); err != nil {
			return err
		}
		charges++ // a real backend pays here, with ctx, which ends before the lease
		_, err := tx.Exec(ctx, `UPDATE orders SET charges = $1 WHERE id = $2`, charges, id)
		return err
	})
	return charges, err
}
