package mysqlguardtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

var levels = []string{"READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"}

// A larger token waits for the transaction that has claimed, and then reads what it wrote;
// the smaller one is refused.
func TestClaimWaitsForTheHolder(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		t.Run(level, func(t *testing.T) {
			_, db := guarded(t, "strict")
			older, newer := session(t, db), session(t, db)
			for _, conn := range []*sql.Conn{older, newer} {
				exec(t, conn, `SET SESSION TRANSACTION ISOLATION LEVEL `+level, `BEGIN`)
			}
			exec(t, older, claim("accounts/1", 33))
			waited := make(chan error, 1)
			go func() {
				_, err := newer.ExecContext(context.Background(), claim("accounts/1", 34))
				waited <- err
			}()
			until(t, db, `SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE '%INTO fencing_marks%' AND ID <> CONNECTION_ID()`)
			exec(t, older, `UPDATE accounts SET balance = balance + 1 WHERE id = 1`)
			select {
			case err := <-waited:
				t.Fatalf("the claim did not wait: %v", err)
			default:
			}
			exec(t, older, `COMMIT`)
			if err := <-waited; level == "SERIALIZABLE" && tooOld(err) {
				return // as MariaDB 11.8 gives it
			} else if err != nil {
				t.Fatal(err)
			}
			if read := text(t, newer, `SELECT balance FROM accounts WHERE id = 1`); read != "101" {
				t.Errorf("the newer holder reads %s, want 101", read)
			}
			exec(t, newer, `UPDATE accounts SET balance = balance + 1 WHERE id = 1`, `COMMIT`)
			refused(t, older, stale, claim("accounts/1", 33))
		})
	}
}

// tooOld says that the transaction's snapshot is older than the last claim.
func tooOld(err error) bool {
	failed, ok := errors.AsType[*mysql.MySQLError](err)
	return ok && failed.Number == 1020
}

// until waits until a query gives something else than 0.
func until(t *testing.T, db queryer, query string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for text(t, db, query) == "0" {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", query)
		}
		runtime.Gosched()
	}
}

// A transaction that has read before it claims would write over what it did not see.
func TestReadBeforeTheClaim(t *testing.T) {
	t.Parallel()
	for _, level := range levels {
		for _, first := range []bool{true, false} { // is it the first claim of the resource?
			t.Run(fmt.Sprintf("%s, first claim: %t", level, first), func(t *testing.T) {
				_, db := guarded(t, "strict")
				conn, other := session(t, db), session(t, db)
				if !first {
					exec(t, db, claim("accounts/1", 30))
				}
				exec(t, conn, `SET SESSION TRANSACTION ISOLATION LEVEL `+level, `BEGIN`)
				_ = text(t, conn, `SELECT balance FROM accounts WHERE id = 2`)
				exec(t, other, `BEGIN`, claim("accounts/1", 33), `UPDATE accounts SET balance = 50 WHERE id = 1`, `COMMIT`)
				_, err := conn.ExecContext(t.Context(), claim("accounts/1", 34))
				if level != "REPEATABLE READ" && (level != "SERIALIZABLE" || !tooOld(err)) {
					if err != nil || text(t, conn, `SELECT balance FROM accounts WHERE id = 1`) != "50" {
						t.Errorf("the claim gives %v, and reads the past", err)
					}
					return
				}
				if !tooOld(err) || !mysqlguard.MayRetry(err) {
					t.Errorf("the claim gives %v, want 1020", err)
				}
				// MariaDB has rolled the transaction back.
				refused(t, conn, missing, `UPDATE accounts SET balance = 0 WHERE id = 1`)
			})
		}
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "strict")
	db.SetMaxOpenConns(1)
	ctx := t.Context()
	pay := func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance - 1 WHERE id = 1`)
		return err
	}
	if err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: "accounts/1", Token: 34}, pay); err != nil {
		t.Fatal(err)
	}
	// The connection goes back to the pool without its claim.
	if tx, err := db.BeginTx(ctx, nil); err != nil || pay(tx) == nil || tx.Rollback() != nil {
		t.Errorf("a writer without a token was let through on the connection of one that had one: %v", err)
	}
	var refusal *fencing.StaleTokenError
	err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: "accounts/1", Token: 33}, pay)
	if !errors.As(err, &refusal) || *refusal != (fencing.StaleTokenError{Resource: "accounts/1", Presented: 33, Highest: 34}) {
		t.Errorf("a stale token gives %v", err)
	}
	odd := "it's 'odd', \"quoted\" \\ ': presented 1, highest seen 2 日本"
	if err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: odd, Token: 5}, func(*sql.Tx) error { return nil }); err != nil {
		t.Error(err)
	}
	err = mysqlguard.Do(ctx, db, fencing.Claim{Resource: odd, Token: 4}, func(*sql.Tx) error { return nil })
	if !errors.As(err, &refusal) || refusal.Resource != odd || refusal.Highest != 5 {
		t.Errorf("an odd resource gives %v", err)
	}
	if err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: "accounts/2", Token: 1}, pay); !errors.Is(err, mysqlguard.ErrTokenMissing) {
		t.Errorf("a write of another resource gives %v", err)
	}
	both := func(tx *sql.Tx) error {
		return errors.Join(mysqlguard.Claim(ctx, tx, fencing.Claim{Resource: "accounts/2", Token: 1}), pay(tx))
	}
	if err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: "accounts/1", Token: 34}, both); err != nil {
		t.Error(err)
	}
	errMine := errors.New("mine")
	if err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: "accounts/1", Token: 35}, func(tx *sql.Tx) error { return errors.Join(pay(tx), errMine) }); !errors.Is(err, errMine) {
		t.Error(err)
	}
	for _, err := range []error{mysqlguard.Do(ctx, db, fencing.Claim{Resource: "", Token: 1}, pay), mysqlguard.Do(ctx, db, fencing.Claim{Resource: "a", Token: 0}, pay)} {
		if !errors.Is(err, fencing.ErrMalformedResource) && !errors.Is(err, fencing.ErrMalformedToken) {
			t.Error(err)
		}
	}
	if left := balance(t, db, 1); left != 98 {
		t.Errorf("the balance is %d, want 98", left)
	}
	cancelled, cancel := context.WithCancel(ctx)
	err = mysqlguard.Do(cancelled, db, fencing.Claim{Resource: "accounts/1", Token: 36}, func(tx *sql.Tx) error { cancel(); return pay(tx) })
	if !errors.Is(err, context.Canceled) || balance(t, db, 1) != 97 && balance(t, db, 1) != 98 {
		t.Errorf("a cancelled transaction gives %v", err)
	}
}

const (
	counters = 8
	writers  = 16
	rounds   = 800
)

// Holders with rising tokens read a counter, pause, and write what they read plus one, at
// every isolation level. Nobody waits for a lease: every round is one whose lease has ended
// already. Without the guard increments are lost; if none were, the test proves nothing.
func TestNoLostUpdates(t *testing.T) { noLostUpdates(t, rounds) }

// TestSoakNoLostUpdates is TestNoLostUpdates for longer.
func TestSoakNoLostUpdates(t *testing.T) {
	testenv.Soak(t, "a lost update in MariaDB that ten times the rounds have")
	noLostUpdates(t, 10*rounds)
}

func noLostUpdates(t *testing.T, rounds int64) {
	t.Helper()
	for _, protected := range []bool{true, false} {
		t.Run(fmt.Sprintf("protected=%t", protected), func(t *testing.T) {
			_, db := guarded(t, "strict")
			exec(t, db, `CALL fencing_unprotect('accounts')`)
			for id := 3; id <= counters; id++ {
				exec(t, db, fmt.Sprintf(`INSERT INTO accounts (id) VALUES (%d)`, id))
			}
			exec(t, db, `UPDATE accounts SET balance = 0`)
			if protected {
				protect(t, db, "accounts", `CONCAT('accounts/', id)`, "strict")
			}
			db.SetMaxOpenConns(writers)
			r := &race{t: t, db: db, protected: protected}
			var begun atomic.Int64
			var wg sync.WaitGroup
			for writer := range uint64(writers) {
				draw := rand.New(rand.NewPCG(1, writer))
				wg.Go(func() {
					for begun.Add(1) <= rounds {
						r.round(draw)
					}
				})
			}
			wg.Wait()
			committed, lost := r.result()
			t.Logf("%d rounds: %d increments committed, %d refused, %d lost", rounds, committed, r.refused.Load(), lost)
			switch {
			case protected && lost != 0:
				t.Errorf("%d increments were lost", lost)
			case protected && (committed < rounds/100 || r.refused.Load() == 0):
				t.Error("too little went through, or was refused, to prove anything")
			case !protected && lost <= 0:
				t.Error("without the guard nothing was lost either, so the test proves nothing")
			}
		})
	}
}

type race struct {
	t         *testing.T
	db        *sql.DB
	protected bool
	tokens    atomic.Int64
	done      [counters + 1]atomic.Int64
	refused   atomic.Int64
}

// round is one holder's read-modify-write: in one transaction, or read in one and written
// in another, as one that has seen a person in between.
func (r *race) round(draw *rand.Rand) {
	id, token := 1+draw.IntN(counters), fencing.Token(r.tokens.Add(1))
	lull(draw)
	var read int64
	get := func(tx *sql.Tx) error {
		return tx.QueryRow(`SELECT balance FROM accounts WHERE id = ?`, id).Scan(&read)
	}
	put := func(tx *sql.Tx) error {
		_, err := tx.Exec(`UPDATE accounts SET balance = ? WHERE id = ?`, read+1, id)
		return err
	}
	var err error
	if draw.IntN(2) == 0 {
		err = r.in(draw, id, token, func(tx *sql.Tx) error {
			if err := get(tx); err != nil {
				return err
			}
			lull(draw)
			return put(tx)
		})
	} else if err = r.in(draw, id, token, get); err == nil {
		lull(draw)
		err = r.in(draw, id, token, put)
	}
	switch {
	case err == nil:
		r.done[id].Add(1)
	case errors.Is(err, fencing.ErrStaleToken) || mysqlguard.MayRetry(err):
		r.refused.Add(1)
	default:
		r.t.Errorf("token %d on counter %d: %v", token, id, err)
	}
}

func lull(draw *rand.Rand) {
	for range draw.IntN(40) {
		runtime.Gosched()
	}
}

// in runs a transaction, guarded or not.
func (r *race) in(draw *rand.Rand, id int, token fencing.Token, fn func(*sql.Tx) error) error {
	isolation := []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}[draw.IntN(4)]
	if r.protected && draw.IntN(2) == 0 {
		return mysqlguard.Do(r.t.Context(), r.db, fencing.Claim{Resource: fmt.Sprintf("accounts/%d", id), Token: token}, fn)
	}
	tx, err := r.db.BeginTx(r.t.Context(), &sql.TxOptions{Isolation: isolation})
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if r.protected {
		if err := mysqlguard.Claim(r.t.Context(), tx, fencing.Claim{Resource: fmt.Sprintf("accounts/%d", id), Token: token}); err != nil {
			return err
		}
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (r *race) result() (committed, lost int64) {
	for id := 1; id <= counters; id++ {
		committed += r.done[id].Load()
		lost += r.done[id].Load() - int64(balance(r.t, r.db, id))
	}
	return committed, lost
}

// Workers that each claim a resource nobody has claimed wait for nobody, and no two of them
// for each other.
func TestFirstClaimsDoNotCollide(t *testing.T) {
	t.Parallel()
	_, db := guarded(t, "inserts")
	db.SetMaxOpenConns(writers)
	var wg sync.WaitGroup
	for writer := range writers {
		wg.Go(func() {
			for n := range 20 {
				id := 1000 + n*writers + writer
				err := mysqlguard.Do(t.Context(), db, fencing.Claim{Resource: fmt.Sprintf("accounts/%d", id), Token: 1}, func(tx *sql.Tx) error {
					_, err := tx.Exec(`INSERT INTO accounts (id) VALUES (?)`, id)
					return err
				})
				if err != nil {
					t.Errorf("account %d: %v", id, err)
				}
			}
		})
	}
	wg.Wait()
}

// briefLease is a lease with a short TTL.
type briefLease struct{ fencing.Claim }

func (briefLease) TTL() time.Duration { return 300 * time.Millisecond }

// A holder that is paused anywhere in Do does not keep its successor from the rows: MariaDB ends its connection
// when its lease is over. Here it is paused before each statement in turn, until it has none left. The settings are
// those that MariaDB uses instead of idle_transaction_timeout if they are not 0, as a session has them from its server.
func TestAPausedHolderIsPutOut(t *testing.T) {
	for _, setting := range []string{"0", "600"} {
		t.Run("the server's limits for transactions that have written, or not, are "+setting, func(t *testing.T) {
			t.Parallel()
			pausedHolderIsPutOut(t, setting)
		})
	}
}

func pausedHolderIsPutOut(t *testing.T, setting string) {
	t.Helper()
	maria, db := guarded(t, "strict")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for sent, token := 1, fencing.Token(5); ; sent, token = sent+1, token+2 {
		holder, pause := pausing(t, maria, sent, setting)
		finished := make(chan error, 1)
		go func() {
			finished <- mysqlguard.Do(ctx, holder, briefLease{fencing.Claim{Resource: "accounts/1", Token: token}}, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `UPDATE accounts SET balance = balance + 1 WHERE id = 1`)
				return err
			})
		}()
		var err error
		select {
		case <-pause.reached:
			if err := mysqlguard.Do(ctx, db, fencing.Claim{Resource: "accounts/1", Token: token + 1}, func(*sql.Tx) error { return nil }); err != nil {
				t.Errorf("paused before packet %d: its successor: %v", sent, err)
			}
			close(pause.over)
			err = <-finished
			t.Logf("paused before packet %d: %v", sent, err)
		case err = <-finished:
			close(pause.over)           // closing the pool sends a packet, too
			if err != nil || sent < 6 { // BEGIN, the limit, the claim, the change, COMMIT, and what Do has set
				t.Errorf("not paused, after fewer than %d packets: %v", sent, err)
			}
			return
		}
	}
}

// pause is where a connection waits before it sends a packet.
type pause struct {
	net.Conn

	left          int // packets to send before the pause
	reached, over chan struct{}
}

func (p *pause) Write(b []byte) (int, error) {
	if p.left--; p.left == 0 {
		close(p.reached)
		<-p.over
	}
	return p.Conn.Write(b)
}

// pausing is a pool with one connection, which pauses before it sends its packet number n from now. Its session has
// the setting as its limit for transactions that have written, and for the others.
func pausing(t *testing.T, maria *testenv.Maria, n int, setting string) (*sql.DB, *pause) {
	t.Helper()
	server, err := url.Parse(maria.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	p := &pause{reached: make(chan struct{}), over: make(chan struct{})}
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName = server.User.Username(), "tcp", server.Host, strings.TrimPrefix(server.Path, "/")
	config.Passwd, _ = server.User.Password()
	config.Params = map[string]string{"idle_write_transaction_timeout": setting, "idle_readonly_transaction_timeout": setting}
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
		p.Conn = conn
		return p, err
	}
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	if err := db.PingContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.left = n
	return db, p
}

// Do leaves the connection as it was: without a claim, and with the session's own limits, which count in the
// transaction if they are shorter. MariaDB has one for all transactions, and two that count instead if they are not 0:
// so those of a server that sets them must not let a paused holder keep its rows.
func TestDoLeavesNothingOnItsConnection(t *testing.T) {
	_, db := guarded(t, "strict")
	db.SetMaxOpenConns(1)
	ends := map[string]func(context.CancelFunc) error{
		"commit":   func(context.CancelFunc) error { return nil },
		"rollback": func(context.CancelFunc) error { return errors.New("of the function") },
		"a cancelled context": func(cancel context.CancelFunc) error {
			cancel()
			return nil
		},
	}
	for name, end := range ends {
		for _, of := range []struct{ setting, own, within string }{ // seconds
			{"idle_transaction_timeout", "0", "1"}, {"idle_transaction_timeout", "7", "1"}, {"idle_transaction_timeout", "1", "1"},
			{"idle_write_transaction_timeout", "0", "0"}, {"idle_write_transaction_timeout", "7", "1"}, {"idle_write_transaction_timeout", "1", "1"},
			{"idle_readonly_transaction_timeout", "0", "0"}, {"idle_readonly_transaction_timeout", "7", "1"},
		} {
			limit := `SELECT @@SESSION.` + of.setting
			exec(t, db, `SET SESSION `+of.setting+` = `+of.own)
			ctx, cancel := context.WithCancel(t.Context())
			_ = mysqlguard.Do(ctx, db, briefLease{fencing.Claim{Resource: "accounts/1", Token: 7}}, func(tx *sql.Tx) error {
				if got := text(t, tx, limit); got != of.within {
					t.Errorf("%s, own limit %+v: %s in the transaction", name, of, got)
				}
				return end(cancel)
			})
			cancel()
			if got := text(t, db, limit); got != of.own {
				t.Errorf("%s: %s is %s afterwards, want %s", name, of.setting, got, of.own)
			}
			if got := text(t, db, `SELECT @fencing_claimer IS NULL`); got != "1" {
				t.Errorf("%s: the connection still has its claim", name)
			}
			exec(t, db, `SET SESSION `+of.setting+` = 0`)
		}
	}
}
