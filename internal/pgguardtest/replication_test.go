package pgguardtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// replication is a protected table accounts in two databases, of which the one
// subscribes to the other.
type replication struct {
	t                     *testing.T
	publisher, subscriber *pgx.Conn // of the owner of everything, who is no superuser
	pg                    [2]*testenv.PG
	super                 [2]*pgx.Conn
	name                  string
	warned                []string // what the subscriber's PostgreSQL warned of
}

func newReplication(t *testing.T) *replication {
	t.Helper()
	t.Parallel()
	r := &replication{t: t}
	for i, own := range []**pgx.Conn{&r.publisher, &r.subscriber} {
		pg := installed(t)
		config, err := pgx.ParseConfig(pg.OwnerURL())
		if err != nil {
			t.Fatal(err)
		}
		if i == 1 {
			config.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) { r.warned = append(r.warned, n.Severity+": "+n.Message) }
		}
		if *own, err = pgx.ConnectConfig(t.Context(), config); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = (*own).Close(context.Background()) })
		r.pg[i], r.super[i], r.name = pg, connectTo(t, pg.URL()), config.Database
		mustExec(t, *own, `CREATE TABLE accounts (id int PRIMARY KEY, balance bigint NOT NULL DEFAULT 0)`)
		mustExec(t, *own, `SELECT fencing.protect('accounts', $$'accounts/' || id$$)`)
	}
	var level string
	if err := r.super[0].QueryRow(t.Context(), `SHOW wal_level`).Scan(&level); err != nil || level != "logical" {
		t.Fatalf("wal_level is %q, %v: set it to logical on the server of %s", level, err, testenv.EnvDatabaseURL)
	}
	return r
}

// subscribe publishes, subscribes and waits for the copy. One server has both databases, so
// the slot is made beforehand: CREATE SUBSCRIPTION would wait for itself.
func (r *replication) subscribe(tables string) {
	r.t.Helper()
	mustExec(r.t, r.super[0], `CREATE PUBLICATION published FOR TABLE `+tables)
	mustExec(r.t, r.super[0], `SELECT pg_create_logical_replication_slot($1, 'pgoutput')`, r.name)
	r.t.Cleanup(r.unsubscribe)
	mustExec(r.t, r.super[1], fmt.Sprintf(`CREATE SUBSCRIPTION %[1]s CONNECTION '%[2]s' PUBLICATION published WITH (create_slot = false, slot_name = '%[1]s')`,
		r.name, r.pg[0].URL()))
	r.caughtUp()
}

func (r *replication) unsubscribe() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for _, sql := range []string{`ALTER SUBSCRIPTION %s DISABLE`, `ALTER SUBSCRIPTION %s SET (slot_name = NONE)`, `DROP SUBSCRIPTION %s`} {
		if _, err := r.super[1].Exec(ctx, fmt.Sprintf(sql, r.name)); err != nil {
			r.t.Errorf("%s: %v", sql, err)
		}
	}
	testenv.Eventually(r.t, 20*time.Second, func() error {
		_, err := r.super[0].Exec(ctx, `SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = $1`, r.name)
		return err
	})
}

// caughtUp returns when the subscriber has all that the publisher has committed.
func (r *replication) caughtUp() {
	r.t.Helper()
	// The test's servers commit without waiting for the log. This flushes it.
	mustExec(r.t, r.super[0], `SET synchronous_commit = on`)
	mustExec(r.t, r.super[0], `SELECT pg_logical_emit_message(true, 'test', '')`)
	var now string
	if err := r.super[0].QueryRow(r.t.Context(), `SELECT pg_current_wal_flush_lsn()::text`).Scan(&now); err != nil {
		r.t.Fatal(err)
	}
	testenv.Eventually(r.t, 30*time.Second, func() error {
		var copying int
		if err := r.super[1].QueryRow(r.t.Context(), `SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`).Scan(&copying); err != nil || copying > 0 {
			return errors.Join(fmt.Errorf("%d tables are being copied", copying), err)
		}
		var reached bool
		err := r.super[0].QueryRow(r.t.Context(), `SELECT confirmed_flush_lsn >= $2::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $1`, r.name, now).Scan(&reached)
		if err != nil || !reached {
			return errors.Join(fmt.Errorf("%s is not reached", now), err)
		}
		return nil
	})
}

// writes claims an account with a token and writes it, at one of the two.
func (r *replication) writes(at *pgx.Conn, id, token int) error {
	tx, err := at.Begin(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(r.t.Context(), `SELECT fencing.claim('accounts/' || $1::int, $2)`, id, token); err != nil {
		return err
	}
	if _, err := tx.Exec(r.t.Context(), `INSERT INTO accounts VALUES ($1, $2) ON CONFLICT (id) DO UPDATE SET balance = excluded.balance`, id, token); err != nil {
		return err
	}
	return tx.Commit(r.t.Context())
}

func (r *replication) problem() (problem string) {
	r.t.Helper()
	if err := r.subscriber.QueryRow(r.t.Context(), `SELECT coalesce(problem, '') FROM fencing.status WHERE kind = 'table'`).Scan(&problem); err != nil {
		r.t.Fatal(err)
	}
	return problem
}

// TestReplicatedMarksAreMerged: copied or applied, a publisher's mark neither lowers
// a larger one of the subscriber's own, nor stops the subscription.
func TestReplicatedMarksAreMerged(t *testing.T) {
	r := newReplication(t)
	claim := func(at *pgx.Conn, id, token int) {
		t.Helper()
		mustExec(t, at, `SELECT fencing.claim('accounts/' || $1::int, $2)`, id, token)
		mustExec(t, at, `INSERT INTO fencing.proven VALUES ('accounts/' || $1::int, $2::int, 0, '1', now()) ON CONFLICT (resource) DO UPDATE SET mark = excluded.mark`, id, token)
	}
	want := func(what, want string) {
		t.Helper()
		if got := marks(t, r.subscriber); got != want {
			t.Errorf("%s: the marks are %s, want %s", what, got, want)
		}
	}
	claim(r.publisher, 1, 34)
	claim(r.publisher, 2, 34)
	claim(r.subscriber, 1, 50)
	r.subscribe(`accounts, fencing.marks, fencing.proven`)
	want("copied", "plain:accounts/1=50 plain:accounts/2=34 proven:accounts/1=50 proven:accounts/2=34")
	claim(r.subscriber, 3, 50)
	claim(r.publisher, 1, 35)
	claim(r.publisher, 2, 36)
	claim(r.publisher, 3, 35)
	r.caughtUp()
	want("applied", "plain:accounts/1=50 plain:accounts/2=36 plain:accounts/3=50 proven:accounts/1=50 proven:accounts/2=36 proven:accounts/3=50")
	if err := r.writes(r.subscriber, 1, 49); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a token that was stale at the subscriber: %v", err)
	}
	claim(r.publisher, 3, 60)
	mustExec(t, r.publisher, `DELETE FROM fencing.marks`)
	mustExec(t, r.publisher, `DELETE FROM fencing.proven`)
	r.caughtUp()
	want("deleted", "plain:accounts/1=50 plain:accounts/2=36 plain:accounts/3=60 proven:accounts/1=50 proven:accounts/2=36 proven:accounts/3=60")
	// A transaction's number of another server means nothing here.
	var foreign int
	if err := r.subscriber.QueryRow(t.Context(), `SELECT count(*) FROM fencing.marks WHERE resource <> 'accounts/1' AND mark IN (36, 60) AND xid <> '0'`).Scan(&foreign); err != nil || foreign > 0 {
		t.Errorf("%d marks have a transaction of the publisher, %v", foreign, err)
	}
}

// TestProtectedSubscriber: what the publisher accepted is copied and applied without
// a token, local writes need one, and writers can move over: their marks came along.
func TestProtectedSubscriber(t *testing.T) {
	r := newReplication(t)
	for id := range 3 {
		if err := r.writes(r.publisher, id, 34); err != nil {
			t.Fatal(err)
		}
	}
	r.subscribe(`accounts, fencing.marks`)
	if err := r.writes(r.publisher, 1, 35); err != nil {
		t.Fatal(err)
	}
	r.caughtUp()
	var sum int
	if err := r.subscriber.QueryRow(t.Context(), `SELECT sum(balance) FROM accounts`).Scan(&sum); err != nil || sum != 34+34+35 {
		t.Errorf("the copy's balances are %d together, %v", sum, err)
	}
	if problem := r.problem(); problem != "" {
		t.Errorf("the status says %q", problem)
	}
	if _, err := r.subscriber.Exec(t.Context(), `UPDATE accounts SET balance = -1`); sqlState(err) != pgguard.SQLStateMissing {
		t.Errorf("a local write without a token: %v", err)
	}
	if err := r.writes(r.subscriber, 1, 34); sqlState(err) != pgguard.SQLStateStale {
		t.Errorf("a local write of a holder that is stale at the publisher: %v", err)
	}
	if err := r.writes(r.subscriber, 1, 36); err != nil {
		t.Errorf("a local write of the next holder: %v", err)
	}
}

// TestSubscriptionsThatAreTold: one without the marks, one without the proven marks
// where proofs are demanded, and one that the guard's own trigger would stop.
func TestSubscriptionsThatAreTold(t *testing.T) {
	r := newReplication(t)
	r.subscribe(`accounts`)
	want := func(parts ...string) {
		t.Helper()
		problem := r.problem()
		for _, part := range parts {
			if !strings.Contains(problem, part) {
				t.Errorf("the status says %q, want %q", problem, part)
			}
		}
		if len(parts) == 0 && problem != "" {
			t.Errorf("the status says %q", problem)
		}
	}
	unmarked := "the subscription " + r.name + " writes it and does not carry fencing.marks"
	want(unmarked)
	mustExec(t, r.subscriber, `SELECT fencing.protect('accounts', $$'accounts/' || id$$)`)
	if len(r.warned) != 1 || r.warned[0] != "WARNING: public.accounts is protected, but not fully: "+unmarked {
		t.Errorf("protect warned of %q", r.warned)
	}
	mustExec(t, r.super[0], `ALTER PUBLICATION published ADD TABLE fencing.marks`)
	mustExec(t, r.super[1], `ALTER SUBSCRIPTION `+r.name+` REFRESH PUBLICATION`)
	want()
	mustExec(t, r.subscriber, `ALTER TABLE accounts ENABLE ALWAYS TRIGGER "0_fencing_guard"`)
	want("the trigger 0_fencing_guard of public.accounts fires always, which stops the subscription " + r.name)
	mustExec(t, r.subscriber, `ALTER TABLE accounts ENABLE TRIGGER "0_fencing_guard"`)
	mustExec(t, r.subscriber, `SELECT fencing.set_proof_key('k1', sha256('key'))`)
	mustExec(t, r.subscriber, `SELECT fencing.protect('accounts', $$'accounts/' || id$$, proof => true)`)
	want("does not carry fencing.proven")
	// Whoever may read the status needs no right but that.
	role, reader := newcomer(t, r.pg[1])
	mustExec(t, r.subscriber, `GRANT USAGE ON SCHEMA fencing TO `+role)
	mustExec(t, r.subscriber, `GRANT SELECT ON fencing.status TO `+role)
	mustExec(t, reader, `SELECT * FROM fencing.status`)
}
