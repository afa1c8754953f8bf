package pgguardtest_test

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// rounds is how many read-modify-writes each half of TestNoLostUpdates makes.
const rounds = 2000

var (
	soakRounds = flag.Int("rounds", 10000, "read-modify-writes of TestSoakNoLostUpdates, with the guard and again without")
	seed       = flag.Uint64("seed", 1, "what the read-modify-writes are drawn from; how they interleave is up to the machine")
)

const (
	counters    = 8  // rows that are counted up
	writers     = 16 // real connections
	longestLull = 40 // scheduler turns of a pause
)

// TestNoLostUpdates has holders with rising tokens read a counter, pause, and
// write what they read plus one: in one transaction or in two, at every
// isolation level, with tokens claimed or presented. Nobody waits for a lease
// here: every round is one whose lease has ended already. With the guard, a
// counter ends as high as the number of increments that were committed.
// Without it, increments are lost; if none were, the test proves nothing.
func TestNoLostUpdates(t *testing.T) { noLostUpdates(t, rounds) }

// TestSoakNoLostUpdates is TestNoLostUpdates for longer.
func TestSoakNoLostUpdates(t *testing.T) {
	testenv.Soak(t, "a lost update in Postgres that is one in ten thousand")
	noLostUpdates(t, *soakRounds)
}

func noLostUpdates(t *testing.T, rounds int) {
	t.Helper()
	th := newTheatre(t)
	th.resolveDeadlocksSoon()
	for _, protected := range []bool{true, false} {
		t.Run(fmt.Sprintf("protected=%t", protected), func(t *testing.T) {
			s := th.newStage(t, false, pgx.ReadCommitted)
			s.exec(`INSERT INTO accounts SELECT generate_series(4, $1::int)`, counters)
			s.protected = protected
			s.protect("accounts", `'accounts/' || id`)
			r := &race{stage: s, pool: s.pool(writers), rounds: rounds}
			r.run()
			lost := r.lost()
			t.Logf("%d rounds: %d increments committed, %d refused, %d lost", rounds, r.committed(), r.refused.Load(), lost)
			switch {
			case protected && lost != 0:
				t.Errorf("%d increments were lost", lost)
			case protected && r.committed() < int64(rounds/100):
				t.Errorf("only %d of %d rounds went through, so little is proven", r.committed(), rounds)
			case protected && r.refused.Load() == 0:
				t.Error("nobody was refused, so nothing is proven")
			case !protected && lost <= 0:
				t.Error("without the guard nothing was lost either, so the test proves nothing")
			}
		})
	}
}

// resolveDeadlocksSoon: a presented token locks the row before the mark, a
// claim the mark before the row. PostgreSQL finds out after a second.
func (th *theatre) resolveDeadlocksSoon() {
	th.t.Helper()
	conn, err := pgx.Connect(th.t.Context(), th.superURL)
	if err != nil {
		th.t.Fatal(err)
	}
	defer func() { _ = conn.Close(th.t.Context()) }()
	mustExec(th.t, conn, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = %L', current_database(), '10ms'); END $$`)
}

func (s *stage) pool(conns int32) *pgxpool.Pool {
	s.t.Helper()
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		s.t.Fatal(err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = "app"
	config.MaxConns = conns
	pool, err := pgxpool.NewWithConfig(s.t.Context(), config)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(pool.Close)
	return pool
}

type race struct {
	*stage
	pool    *pgxpool.Pool
	rounds  int
	tokens  atomic.Int64
	done    [counters + 1]atomic.Int64 // committed increments of each counter
	refused atomic.Int64
}

func (r *race) run() {
	r.tokens.Store(1)
	var begun atomic.Int64
	var wg sync.WaitGroup
	for writer := range uint64(writers) {
		w := racer{race: r, draw: rand.New(rand.NewPCG(*seed, writer))}
		wg.Go(func() {
			for begun.Add(1) <= int64(r.rounds) {
				w.round()
			}
		})
	}
	wg.Wait()
}

// racer is one of the writers, with draws of its own.
type racer struct {
	*race
	draw *rand.Rand
}

// round is one holder's read-modify-write.
func (r racer) round() {
	id := 1 + r.draw.IntN(counters)
	token := r.tokens.Add(1)
	r.lull()
	styles := []func(context.Context, int, int64) error{r.oneTransaction, r.threeStatements}
	err := styles[r.draw.IntN(len(styles))](r.t.Context(), id, token)
	switch state := sqlState(err); {
	case err == nil:
		r.done[id].Add(1)
	case state == pgguard.SQLStateStale || state == "40001" || state == "40P01" || errors.Is(err, errMoved):
		r.refused.Add(1)
	default:
		r.t.Errorf("token %d on counter %d: %v", token, id, err)
	}
}

// errMoved: an update found no row; it does not happen.
var errMoved = errors.New("the counter is gone")

// oneTransaction claims, reads, pauses and writes in one transaction.
func (r racer) oneTransaction(ctx context.Context, id int, token int64) error {
	return pgx.BeginTxFunc(ctx, r.pool, pgx.TxOptions{IsoLevel: isolations[r.draw.IntN(len(isolations))]}, func(tx pgx.Tx) error {
		if err := r.claim(ctx, tx, id, token); err != nil {
			return err
		}
		var balance int64
		if err := tx.QueryRow(ctx, `SELECT balance FROM accounts WHERE id = $1`, id).Scan(&balance); err != nil {
			return err
		}
		r.lull()
		return one(tx.Exec(ctx, `UPDATE accounts SET balance = $2 WHERE id = $1`, id, balance+1))
	})
}

// threeStatements claims, reads and writes in three statements that a pooler
// may send through three connections.
func (r racer) threeStatements(ctx context.Context, id int, token int64) error {
	if err := r.claim(ctx, r.pool, id, token); err != nil {
		return err
	}
	r.lull()
	var balance int64
	if err := r.pool.QueryRow(ctx, `SELECT balance FROM accounts WHERE id = $1`, id).Scan(&balance); err != nil {
		return err
	}
	r.lull()
	const update = `UPDATE accounts SET balance = $2 WHERE id = $1 AND `
	switch {
	case !r.protected:
		return one(r.pool.Exec(ctx, update+`true`, id, balance+1))
	case r.draw.IntN(2) == 0:
		return one(r.pool.Exec(ctx, update+`fencing.present('accounts/' || $1, $3) <> ''`, id, balance+1, token))
	default:
		return one(r.pool.Exec(ctx, update+`(SELECT fencing.claim('accounts/' || $1, $3)) IS NOT NULL`, id, balance+1, token))
	}
}

// claim is left out without the guard: the row lock on the mark would be
// a guard of its own.
func (r *race) claim(ctx context.Context, db execer, id int, token int64) error {
	if !r.protected {
		return nil
	}
	_, err := db.Exec(ctx, `SELECT fencing.claim('accounts/' || $1::int, $2)`, id, token)
	return err
}

func one(tag interface{ RowsAffected() int64 }, err error) error {
	if err == nil && tag.RowsAffected() != 1 {
		return errMoved
	}
	return err
}

// lull gives the others a turn, or several.
func (r racer) lull() {
	for range r.draw.IntN(longestLull) {
		runtime.Gosched()
	}
}

func (r *race) committed() (n int64) {
	for i := range r.done {
		n += r.done[i].Load()
	}
	return n
}

// lost is how many committed increments the counters do not show.
func (r *race) lost() int64 {
	var sum int64
	if err := r.admn.QueryRow(r.t.Context(), `SELECT sum(balance) FROM accounts`).Scan(&sum); err != nil {
		r.t.Fatal(err)
	}
	return r.committed() - sum
}

// TestDo holds Do to the same, with its own retries left to the caller.
func TestDo(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	pool := s.pool(4)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	saves := map[string]func(token fencing.Token, query string) error{
		"pgx": func(token fencing.Token, query string) error {
			return pgguard.Do(t.Context(), pool, fencing.Claim{Resource: "accounts/1", Token: token}, func(tx pgx.Tx) error {
				_, err := tx.Exec(t.Context(), query)
				return err
			})
		},
		"database/sql": func(token fencing.Token, query string) error {
			return pgguard.DoSQL(t.Context(), db, fencing.Claim{Resource: "accounts/1", Token: token}, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(t.Context(), query)
				return err
			})
		},
	}
	for name, save := range saves {
		t.Run(name, func(t *testing.T) {
			s.exec(`TRUNCATE fencing.marks`)
			before := s.status("table", "accounts").Refused
			balance := func(want int) {
				t.Helper()
				var got int
				if err := s.admn.QueryRow(t.Context(), `SELECT balance FROM accounts WHERE id = 1`).Scan(&got); err != nil || got != want {
					t.Errorf("balance is %d, %v; want %d", got, err, want)
				}
			}
			if err := save(34, `UPDATE accounts SET balance = 34 WHERE id = 1`); err != nil {
				t.Fatal(err)
			}
			balance(34)
			var stale *fencing.StaleTokenError
			err := save(33, `UPDATE accounts SET balance = 33 WHERE id = 1`)
			if !errors.As(err, &stale) || *stale != (fencing.StaleTokenError{Resource: "accounts/1", Presented: 33, Highest: 34}) {
				t.Errorf("a stale token gives %v", err)
			}
			balance(34)
			if err := save(34, `UPDATE accounts SET balance = 0 WHERE id = 2`); !errors.Is(err, pgguard.ErrTokenMissing) {
				t.Errorf("writing another resource's row gives %v", err)
			}
			err = save(35, `SELECT fencing.claim('accounts/1', 1)`)
			if !errors.As(err, &stale) || stale.Presented != 1 {
				t.Errorf("a refusal inside fn gives %v", err)
			}
			if err := save(36, `SELECT fencing.claim('', 1)`); !errors.Is(err, fencing.ErrMalformedToken) {
				t.Errorf("a malformed claim inside fn gives %v", err)
			}
			if err := save(0, `SELECT 1`); !errors.Is(err, fencing.ErrMalformedToken) {
				t.Errorf("token 0 gives %v", err)
			}
			if err := save(36, `SELECT no_such_function()`); err == nil || errors.Is(err, fencing.ErrStaleToken) {
				t.Errorf("another error gives %v", err)
			}
			if err := save(36, `UPDATE accounts SET balance = 36 WHERE id = 1`); err != nil {
				t.Errorf("after an error the connection is not clean: %v", err)
			}
			balance(36)
			if got := s.status("table", "accounts").Refused - before; got != 2 {
				t.Errorf("status counts %d refusals, want 2", got)
			}
		})
	}
}
