// Command faultworker is the worker of the fault run (clients/faults) with the Go client: faultworker
// [batches] SERVERS DEPOSITS TTL. With batches, each call that does not wait is sent in a batch.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/storage/pgguard"
)

const (
	accounts = 5
	step     = 10 * time.Millisecond // between two looks at the lease
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type worker struct {
	locks   *client.Client
	pool    *pgxpool.Pool
	ttl     time.Duration
	ending  atomic.Bool
	starved starved

	mu     sync.Mutex // also guards the output
	errors map[string]int
}

func run() error {
	args := os.Args[len(os.Args)-3:]
	deposits, errN := strconv.Atoi(args[1])
	ttl, errTTL := strconv.Atoi(args[2])
	config, err := pgxpool.ParseConfig(os.Getenv("DATABASE_URL"))
	if err := errors.Join(errN, errTTL, err); err != nil {
		return err
	}
	config.MaxConns = int32(deposits)
	before := map[string]int{"goroutines": runtime.NumGoroutine(), "sockets": sockets()}
	opts := []client.Option{client.WithTimeout(2 * time.Second)}
	if slices.Contains(os.Args, "batches") {
		opts = append(opts, client.WithBatchAfter(0))
	}
	locks, err := client.New(strings.Split(args[0], ","), opts...)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return err
	}
	w := &worker{locks: locks, pool: pool, ttl: time.Duration(ttl) * time.Millisecond, errors: map[string]int{}}
	w.starved.look()
	var all sync.WaitGroup
	all.Go(w.watch)
	for range deposits {
		all.Go(w.work)
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	w.ending.Store(true)
	all.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := locks.Close(ctx); err != nil {
		return err
	}
	pool.Close()
	w.say(map[string]any{"errors": w.errors, "leaks": leaks(before)})
	return nil
}

func (w *worker) say(line map[string]any) {
	raw, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Println(string(raw))
}

func (w *worker) watch() {
	for !w.ending.Load() {
		time.Sleep(2 * step)
		w.starved.look()
	}
}

func (w *worker) work() {
	for !w.ending.Load() {
		if err := w.deposit(context.Background()); err != nil {
			w.note(err)
			time.Sleep(step)
		}
	}
}

// note counts an error under its name.
func (w *worker) note(err error) {
	name := "unexpected: " + err.Error()
	if postgres := (*pgconn.PgError)(nil); errors.As(err, &postgres) {
		name = "postgres " + postgres.Code
	}
	for known, as := range map[string]error{
		"held": client.ErrHeld, "lost": client.ErrLeaseLost, "unavailable": client.ErrUnavailable, "stale": fencing.ErrStaleToken,
	} {
		if errors.Is(err, as) {
			name = known
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errors[name]++
}

func (w *worker) deposit(ctx context.Context) error {
	account := 1 + rand.IntN(accounts)
	wait := one(0, 5*time.Second, 20*time.Second)
	due := now() + wait.Seconds()
	var once sync.Once
	ended := func() { // reports the end of the call for the lease, once
		once.Do(func() {
			at := now()
			w.say(map[string]any{"call": []float64{at - due, w.starved.within(due, at)}})
		})
	}
	defer ended()
	return w.locks.Do(ctx, fmt.Sprint("accounts/", account), func(ctx context.Context, l *client.Lease) error {
		ended()
		return w.under(ctx, l, account)
	}, client.TTL(w.ttl), client.Wait(wait))
}

// under works under a lease. Most work is short; some work outlives the TTL.
func (w *worker) under(ctx context.Context, l *client.Lease, account int) error {
	begin, at := now(), "work"
	defer func() {
		end := now()
		until := end + time.Until(l.Until()).Seconds()
		w.say(map[string]any{"work": []float64{float64(account), begin, end, until, w.starved.within(until, end)}, "at": at})
	}()
	byClock := rand.IntN(2) == 0 // otherwise it looks only at the channel
	for left := one(20*time.Millisecond, 100*time.Millisecond, 300*time.Millisecond, w.ttl*3/2); left > 0; left -= step {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(step):
		}
		if byClock && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	id := fmt.Sprintf("%d-%x", os.Getpid(), rand.Uint64())
	at = "claim"
	err := pgguard.Do(ctx, w.pool, l, func(tx pgx.Tx) error {
		var balance int64
		at = "select"
		if err := tx.QueryRow(ctx, "SELECT balance FROM accounts WHERE id = $1", account).Scan(&balance); err != nil {
			return err
		}
		at = "write"
		if _, err := tx.Exec(ctx, "INSERT INTO effects (id, account) VALUES ($1, $2)", id, account); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE accounts SET balance = $1 WHERE id = $2", balance+1, account)
		at = "commit"
		return err
	})
	if err == nil {
		w.say(map[string]any{"effect": id})
	}
	return err
}

func one[T any](of ...T) T { return of[rand.IntN(len(of))] }
