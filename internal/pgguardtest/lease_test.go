package pgguardtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// severalResources is a lease as the client has one.
type severalResources []fencing.Claim

func (l severalResources) Claims() []fencing.Claim { return l }
func (severalResources) Validity() time.Duration   { return time.Second }

// Do claims every resource of a lease, and says what is wrong with a database without a guard.
func TestDoTakesALease(t *testing.T) {
	url, _, _ := newProofs(t)
	pool := openPool(t, url)
	lease := severalResources{{Resource: "a/1", Token: 5}, {Resource: "a/2", Token: 9}}
	if err := pgguard.Do(t.Context(), pool, lease, func(pgx.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	var marks int
	err := pool.QueryRow(t.Context(), `SELECT count(*) FROM fencing.marks WHERE (resource, mark) IN (('a/1', 5), ('a/2', 9))`).Scan(&marks)
	if err != nil || marks != 2 {
		t.Errorf("%d marks are raised, %v", marks, err)
	}
	err = pgguard.Do(t.Context(), pool, severalResources{{Resource: "a/1", Token: 6}, {Resource: "a/2", Token: 8}}, func(pgx.Tx) error { return nil })
	var stale *fencing.StaleTokenError
	if !errors.As(err, &stale) || stale.Resource != "a/2" || !errors.Is(err, fencing.ErrLeaseLost) {
		t.Errorf("a stale part gives %v", err)
	}
	empty := openPool(t, testenv.Postgres(t).OwnerURL())
	err = pgguard.Do(context.WithoutCancel(t.Context()), empty, fencing.Claim{Resource: "a", Token: 1}, func(pgx.Tx) error { return nil })
	if !errors.Is(err, pgguard.ErrNotInstalled) {
		t.Errorf("a database without a guard gives %v", err)
	}
}

// timedLease is a lease that says its TTL.
type timedLease struct{ fencing.Claim }

func (timedLease) TTL() time.Duration { return 1500 * time.Millisecond }

// The session of a holder that hangs in its transaction is ended after the TTL, and later ones keep what they had.
func TestAHolderThatHangsIsEnded(t *testing.T) {
	url, _, _ := newProofs(t)
	pool := openPool(t, url)
	limits := func(lease fencing.Lease) (within, after string) {
		t.Helper()
		conn, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		const show = `SELECT current_setting('idle_in_transaction_session_timeout')`
		err = errors.Join(pgguard.Do(t.Context(), conn, lease, func(tx pgx.Tx) error { return tx.QueryRow(t.Context(), show).Scan(&within) }),
			conn.QueryRow(t.Context(), show).Scan(&after))
		if err != nil {
			t.Fatal(err)
		}
		return within, after
	}
	usual, _ := limits(fencing.Claim{Resource: "a/1", Token: 1})
	if within, after := limits(timedLease{fencing.Claim{Resource: "a/1", Token: 2}}); within != "1500ms" || after != usual {
		t.Errorf("the limit is %s in the transaction, and %s after it, which was %s", within, after, usual)
	}
}

// A holder that is paused in its transaction doesn't keep its successor from the rows.
func TestAPausedHolderIsPutOut(t *testing.T) {
	url, _, _ := newProofs(t)
	pool := openPool(t, url)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := pgguard.Do(ctx, pool, timedLease{fencing.Claim{Resource: "a/1", Token: 5}}, func(pgx.Tx) error { // it is paused here
		return pgguard.Do(ctx, pool, fencing.Claim{Resource: "a/1", Token: 6}, func(pgx.Tx) error { return nil })
	})
	if err == nil || ctx.Err() != nil {
		t.Errorf("the paused holder: %v", err)
	}
	var mark int64
	if err := pool.QueryRow(t.Context(), `SELECT mark FROM fencing.marks WHERE resource = 'a/1'`).Scan(&mark); err != nil || mark != 6 {
		t.Errorf("the mark is %d, %v", mark, err)
	}
}
