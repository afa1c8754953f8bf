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
