package pgstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/internal/testenv"
)

// When its context ends, a round trip is cut off. After a round trip is over, a later end of its context cuts nothing
// off.
func TestARoundTripEndsWithItsContext(t *testing.T) {
	t.Parallel()
	conn, err := pgconn.Connect(t.Context(), testenv.Postgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	ctx, cancel := context.WithCancel(t.Context())
	if err := roundTrip(ctx, conn, statement{sql: `SELECT 1`}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := roundTrip(ctx, conn, statement{sql: `SELECT 1`}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
	if err := roundTrip(t.Context(), conn, statement{sql: `SELECT 1`}); err != nil {
		t.Errorf("with another context: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := roundTrip(short, conn, statement{sql: `SELECT pg_sleep(60)`}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a statement that takes longer than its context: %v", err)
	}
}
