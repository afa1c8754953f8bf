package pgguardtest_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/storage/pgguard"
)

// The scenarios of this file put the stale writer and the holder in each
// other's way. Above READ COMMITTED some of them end as a serialization
// failure, which refuses the stale writer as well.
var staleOrSerialization = []string{pgguard.SQLStateStale, "40001"}

const staleUpdate = `UPDATE accounts SET balance = -1 WHERE id = 1 AND fencing.present('accounts/1', 33) <> ''`

func TestStaleWriterWaits(t *testing.T) {
	th := newTheatre(t)
	// Above READ COMMITTED, PostgreSQL itself refuses to change a row that is
	// newer than the snapshot, guard or not.
	th.playAt(pgx.ReadCommitted, "for a row that the holder changes", stale, func(s *stage) error {
		s.exec(`SELECT fencing.claim('accounts/1', 34)`)
		holder := s.beginReadCommitted()
		mustExec(s.t, holder, `UPDATE accounts SET balance = 100 WHERE id = 1 AND fencing.present('accounts/1', 34) <> ''`)
		writer := s.begin()
		done := async(s.t, writer, staleUpdate)
		if waited, err := s.waits(done); !waited {
			s.t.Fatalf("the writer did not wait for the row: %v", err)
		}
		mustCommit(s.t, holder)
		if err := <-done; err != nil {
			return err
		}
		return writer.Commit(s.t.Context())
	})
	th.play("for a mark that the holder has raised", staleOrSerialization, func(s *stage) error {
		s.exec(`SELECT fencing.claim('accounts/1', 33)`)
		holder := s.beginReadCommitted()
		mustExec(s.t, holder, `SELECT fencing.claim('accounts/1', 34)`)
		writer := s.begin()
		return s.finishWaiting(holder, writer, async(s.t, writer, staleUpdate))
	})
	th.play("for a mark that nobody had claimed before", staleOrSerialization, func(s *stage) error {
		holder := s.beginReadCommitted()
		mustExec(s.t, holder, `SELECT fencing.claim('accounts/1', 34)`)
		writer := s.begin()
		return s.finishWaiting(holder, writer, async(s.t, writer, staleUpdate))
	})
}

// finishWaiting commits the holder once the writer waits, and then the writer.
func (s *stage) finishWaiting(holder, writer pgx.Tx, done <-chan error) error {
	s.t.Helper()
	waited, err := s.waits(done)
	if waited == !s.protected {
		s.t.Errorf("the stale writer waited: %t, protected: %t", waited, s.protected)
	}
	mustCommit(s.t, holder)
	if waited {
		err = <-done
	}
	if err != nil {
		return err
	}
	return writer.Commit(s.t.Context())
}

func (s *stage) beginReadCommitted() pgx.Tx {
	s.t.Helper()
	tx, err := s.connect().Begin(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func mustCommit(t *testing.T, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatalf("commit: %v", err)
	}
}

// TestOldSnapshot: the stale writer's snapshot does not show the holder's claim.
func TestOldSnapshot(t *testing.T) {
	th := newTheatre(t)
	for name, before := range map[string]string{
		"of an older mark": `SELECT fencing.claim('accounts/1', 33)`,
		"of no mark":       `SELECT 1`,
	} {
		th.play(name, staleOrSerialization, func(s *stage) error {
			s.exec(before)
			writer := s.begin()
			mustExec(s.t, writer, `SELECT * FROM accounts`) // the snapshot is taken
			s.exec(`SELECT fencing.claim('accounts/1', 34)`)
			if _, err := writer.Exec(s.t.Context(), staleUpdate); err != nil {
				return err
			}
			return writer.Commit(s.t.Context())
		})
	}
}

// TestClaimWaitsForTheWriter is the other order: the older token has written
// and not yet committed. The claim must wait, and what the claimant reads then
// must contain the write. Without protection it reads the past.
func TestClaimWaitsForTheWriter(t *testing.T) {
	th := newTheatre(t)
	for _, iso := range isolations {
		for _, form := range []string{"claimed", "presented"} {
			t.Run(string(iso)+"/"+form, func(t *testing.T) {
				s := th.newStage(t, true, iso)
				s.exec(`SELECT fencing.claim('accounts/1', 33)`)
				older := s.beginReadCommitted()
				if form == "claimed" {
					mustExec(t, older, `SELECT fencing.claim('accounts/1', 33)`)
					mustExec(t, older, `UPDATE accounts SET balance = 100 WHERE id = 1`)
				} else {
					mustExec(t, older, `UPDATE accounts SET balance = 100 WHERE id = 1 AND fencing.present('accounts/1', 33) <> ''`)
				}
				holder := s.begin()
				done := async(t, holder, `SELECT fencing.claim('accounts/1', 34)`)
				if waited, err := s.waits(done); !waited {
					t.Fatalf("the claim did not wait for a write in flight: %v", err)
				}
				mustCommit(t, older)
				err := <-done
				if iso != pgx.ReadCommitted {
					// Its snapshot is older than the write: it must not continue.
					if sqlState(err) != "40001" {
						t.Fatalf("a claim with a snapshot older than the write gives %v, want a serialization failure", err)
					}
					_ = holder.Rollback(t.Context())
					holder = s.begin()
					_, err = holder.Exec(t.Context(), `SELECT fencing.claim('accounts/1', 34)`)
				}
				if err != nil {
					t.Fatal(err)
				}
				var balance int
				if err := holder.QueryRow(t.Context(), `SELECT balance FROM accounts WHERE id = 1`).Scan(&balance); err != nil {
					t.Fatal(err)
				}
				if balance != 100 {
					t.Errorf("after its claim the holder reads %d, not what the older holder committed", balance)
				}
			})
		}
	}
}

// TestSnapshotTakenBeforeTheClaim: the older holder commits between the
// holder's snapshot and its claim. The claim must not succeed on that snapshot.
func TestSnapshotTakenBeforeTheClaim(t *testing.T) {
	th := newTheatre(t)
	for _, iso := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		t.Run(string(iso), func(t *testing.T) {
			s := th.newStage(t, true, iso)
			s.exec(`SELECT fencing.claim('accounts/1', 33)`)
			holder := s.begin()
			mustExec(t, holder, `SELECT 1 FROM accounts`)
			s.exec(`UPDATE accounts SET balance = 100 WHERE id = 1 AND fencing.present('accounts/1', 33) <> ''`)
			if _, err := holder.Exec(t.Context(), `SELECT fencing.claim('accounts/1', 34)`); sqlState(err) != "40001" {
				t.Errorf("a claim on a snapshot that misses the last write gives %v, want a serialization failure", err)
			}
		})
	}
}

// TestFirstClaimsRace: two transactions make the first claim of a resource at
// the same time, in both orders.
func TestFirstClaimsRace(t *testing.T) {
	th := newTheatre(t)
	for _, iso := range isolations {
		t.Run("older first/"+string(iso), func(t *testing.T) {
			s := th.newStage(t, true, iso)
			older, holder := s.begin(), s.begin()
			mustExec(t, older, `SELECT fencing.claim('accounts/1', 33)`)
			done := async(t, holder, `SELECT fencing.claim('accounts/1', 34)`)
			if waited, err := s.waits(done); !waited {
				t.Fatalf("the second first claim did not wait: %v", err)
			}
			mustExec(t, older, `UPDATE accounts SET balance = 100 WHERE id = 1`)
			mustCommit(t, older)
			if err := <-done; sqlState(err) != serializationAbove(iso) {
				t.Fatalf("the larger token's claim gives %v", err)
			}
		})
		t.Run("holder first/"+string(iso), func(t *testing.T) {
			s := th.newStage(t, true, iso)
			older, holder := s.begin(), s.begin()
			mustExec(t, holder, `SELECT fencing.claim('accounts/1', 34)`)
			done := async(t, older, `SELECT fencing.claim('accounts/1', 33)`)
			if waited, err := s.waits(done); !waited {
				t.Fatalf("the second first claim did not wait: %v", err)
			}
			mustCommit(t, holder)
			want := pgguard.SQLStateStale
			if iso != pgx.ReadCommitted {
				want = "40001"
			}
			if err := <-done; sqlState(err) != want {
				t.Fatalf("the smaller token's claim gives %v, want %s", err, want)
			}
		})
	}
}

func serializationAbove(iso pgx.TxIsoLevel) string {
	if iso == pgx.ReadCommitted {
		return ""
	}
	return "40001"
}

// TestRolledBackClaimLocksNobodyOut: a claim that was undone leaves no mark.
func TestRolledBackClaimLocksNobodyOut(t *testing.T) {
	th := newTheatre(t)
	s := th.newStage(t, true, pgx.ReadCommitted)
	tx := s.begin()
	mustExec(t, tx, `SELECT fencing.claim('accounts/1', 99)`)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.exec(`UPDATE accounts SET balance = 1 WHERE id = 1 AND fencing.present('accounts/1', 1) <> ''`)
}

// TestLiveTokensWork: what must go through, at every level.
func TestLiveTokensWork(t *testing.T) {
	th := newTheatre(t)
	for _, iso := range isolations {
		t.Run(string(iso), func(t *testing.T) {
			s := th.newStage(t, true, iso)
			for _, statements := range [][]string{
				{`SELECT fencing.claim('accounts/1', 34)`, `UPDATE accounts SET balance = 1 WHERE id = 1`, `UPDATE accounts SET balance = 2 WHERE id = 1`},
				{`UPDATE accounts SET balance = 3 WHERE id = 1 AND fencing.present('accounts/1', 34) <> ''`},
				{`UPDATE accounts SET balance = 4 WHERE id = 1 AND set_config('fencing.token', pg_current_xact_id() || ' 35 accounts/1', true) <> ''`},
				{`SELECT fencing.claim('accounts/' || id, 36) FROM accounts`, `UPDATE accounts SET balance = 5`, `DELETE FROM accounts`},
				{`SELECT fencing.claim('accounts/' || id, 37) FROM generate_series(1, 5000) AS id`, `INSERT INTO accounts SELECT generate_series(1, 5000)`},
				{presentMany(38), `UPDATE accounts SET balance = 6 WHERE id <= 3`},
				{`SAVEPOINT a`, `SELECT fencing.claim('accounts/1', 38)`, `RELEASE a`, `UPDATE accounts SET balance = 7 WHERE id = 1`},
				{`SELECT fencing.claim('accounts/1', 38)`, `SAVEPOINT a`, `UPDATE accounts SET balance = 8 WHERE id = 1`, `ROLLBACK TO a`, `UPDATE accounts SET balance = 9 WHERE id = 1`},
				{`SELECT fencing.claim('accounts/1', 38), fencing.claim('accounts/9001', 1)`, `UPDATE accounts SET id = 9001 WHERE id = 1`, `UPDATE accounts SET id = 1 WHERE id = 9001`},
			} {
				tx := s.begin()
				for _, sql := range statements {
					mustExec(t, tx, sql)
				}
				mustCommit(t, tx)
			}
			if s.iso == pgx.ReadCommitted {
				tx := s.begin()
				mustExec(t, tx, `SELECT fencing.claim('accounts/' || id, 40) FROM accounts`)
				mustExec(t, tx, `TRUNCATE accounts`)
				mustCommit(t, tx)
			}
		})
	}
}
