package mysqlguardtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/fencing/guardtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

func openGuard(t *testing.T, url string, opts mysqlguard.Options) *mysqlguard.Guard {
	t.Helper()
	g, err := mysqlguard.Open(url, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// TestConformance runs as a user that may do everything in the database and nothing else.
func TestConformance(t *testing.T) {
	t.Parallel()
	url := testenv.MariaDB(t).OwnerURL()
	open := func(t *testing.T) fencing.Guard {
		t.Helper()
		return openGuard(t, url, mysqlguard.Options{CallTimeout: 20 * time.Second})
	}
	guardtest.RunDurable(t,
		func(t *testing.T) fencing.Guard {
			t.Helper()
			if err := mysqlguard.Uninstall(t.Context(), url); err != nil {
				t.Fatal(err)
			}
			return open(t)
		},
		func(t *testing.T, g fencing.Guard) fencing.Guard {
			t.Helper()
			if err := g.(*mysqlguard.Guard).Close(); err != nil {
				t.Fatal(err)
			}
			return open(t)
		})
}

// What was answered survives a kill -9, and a guard finds its server again.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	maria := testenv.StartMariaDB(t, "--log-bin", "--binlog-format=MIXED", "--log-bin-trust-function-creators=1")
	if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	g := openGuard(t, maria.OwnerURL(), mysqlguard.Options{})
	for i := range fencing.Token(20) {
		if _, err := g.Write(t.Context(), "r", i+1, fmt.Appendf(nil, "%d", i+1)); err != nil {
			t.Fatal(err)
		}
	}
	maria.Kill()
	if _, err := g.Claim(t.Context(), "r", 30); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("a claim on a server that is gone gives %v", err)
	}
	maria.Restart()
	record, err := g.Claim(t.Context(), "r", 20)
	if err != nil || record.Version != 20 || string(record.Value) != "20" {
		t.Errorf("after the restart: %+v, %v", record, err)
	}
	if err := g.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestFrozenServer(t *testing.T) {
	t.Parallel()
	maria := testenv.StartMariaDB(t)
	if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	g := openGuard(t, maria.OwnerURL(), mysqlguard.Options{CallTimeout: 300 * time.Millisecond})
	testenv.Eventually(t, time.Minute, func() error { return g.Check(t.Context()) })
	maria.Freeze()
	begun := time.Now()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := g.Claim(t.Context(), "r", 1); !errors.Is(err, fencing.ErrGuardUnavailable) {
				t.Errorf("a claim on a frozen server gives %v", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("eight claims on a frozen server took %v", took)
	}
	maria.Thaw()
	testenv.Eventually(t, 10*time.Second, func() error {
		_, err := g.Claim(t.Context(), "r", 2)
		return err
	})
}

// Servers start on an empty database together.
func TestManyServersInstallAtOnce(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	var wg sync.WaitGroup
	for i := range 6 {
		g := openGuard(t, maria.OwnerURL(), mysqlguard.Options{CallTimeout: 30 * time.Second})
		wg.Go(func() {
			if _, err := g.Claim(t.Context(), fmt.Sprintf("r%d", i), 1); err != nil {
				t.Errorf("server %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

func TestInstalledAgainWhenItIsGone(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	g := openGuard(t, maria.OwnerURL(), mysqlguard.Options{CallTimeout: 10 * time.Second})
	if _, err := g.Claim(t.Context(), "r", 1); err != nil {
		t.Fatal(err)
	}
	if err := mysqlguard.Uninstall(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := maria.DB().QueryRowContext(t.Context(), `SELECT (SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE())
		+ (SELECT COUNT(*) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE())`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d objects are left after Uninstall, %v", left, err)
	}
	if _, err := g.Claim(t.Context(), "r", 1); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("a claim without the schema gives %v", err)
	}
	if _, err := g.Claim(t.Context(), "r", 1); err != nil {
		t.Errorf("the schema was not made again: %v", err)
	}
}

func TestHistoryKept(t *testing.T) {
	t.Parallel()
	g := openGuard(t, testenv.MariaDB(t).OwnerURL(), mysqlguard.Options{HistoryKept: 3, CallTimeout: 10 * time.Second})
	for i := range fencing.Token(10) {
		if _, err := g.Claim(t.Context(), "r", i+1); err != nil {
			t.Fatal(err)
		}
	}
	attempts, err := g.History(t.Context(), "r", 10)
	if err != nil || len(attempts) != 3 || attempts[0].Token != 10 {
		t.Errorf("history is %v, %v", attempts, err)
	}
}

// A service may run under a user that owns nothing.
func TestRightsOfTheService(t *testing.T) {
	t.Parallel()
	maria := testenv.MariaDB(t)
	if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(maria.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	name, database := "service_"+strings.TrimPrefix(u.User.Username(), "owner_"), strings.Trim(u.Path, "/")
	admin := maria.Admin()
	t.Cleanup(func() { _, _ = admin.ExecContext(context.Background(), "DROP USER "+name) })
	exec(t, admin, "CREATE USER "+name+" IDENTIFIED BY 'x'")
	for _, table := range []string{"fencing_marks", "fencing_records", "fencing_attempts", "fencing_version", "fencing_refusals"} {
		exec(t, admin, fmt.Sprintf("GRANT SELECT ON %s.%s TO %s", database, table, name))
	}
	exec(t, admin, fmt.Sprintf("GRANT EXECUTE ON PROCEDURE %s.fencing_attempt TO %s", database, name))
	u.User = url.UserPassword(name, "x")
	g := openGuard(t, u.String(), mysqlguard.Options{})
	if _, err := g.Write(t.Context(), "r", 1, json.RawMessage(`1`)); err != nil {
		t.Error(err)
	}
	if _, err := g.Read(t.Context(), "r"); err != nil {
		t.Error(err)
	}
	if _, err := g.Refused(t.Context()); err != nil {
		t.Error(err)
	}
	if err := g.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMalformedURLs(t *testing.T) {
	for _, text := range []string{"", "postgres://u:secret@h/d", "mysql://u:secret@h", "mysql://u:secret@/d", "mysql://u:secret@h/d?timeout=x", "mysql://u:se cret@h:x/d"} {
		if _, err := mysqlguard.Open(text, mysqlguard.Options{}); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q gives %v", text, err)
		}
	}
	if _, err := mysqlguard.Open("mysql://u@h/d", mysqlguard.Options{HistoryKept: -1}); err == nil {
		t.Error("HistoryKept -1 was accepted")
	}
}

// slowly is a guard in a database of its own, over a network that is late, and the line to it.
// The script has dozens of statements, so it takes several times as long as a call may.
func slowly(t *testing.T) (*mysqlguard.Guard, *testenv.Proxy) {
	t.Helper()
	at, err := url.Parse(testenv.MariaDB(t).OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	line := testenv.StartProxy(t, at.Host)
	at.Host = line.Addr()
	line.Delay(25 * time.Millisecond)
	g, err := mysqlguard.Open(at.String(), mysqlguard.Options{CallTimeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Claim(t.Context(), "r", 1); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Fatalf("a call that began the installation gives %v", err)
	}
	return g, line
}

// An installation continues when the call that began it has run out of time, and a later call
// finds the guard: on a slow server each call would otherwise cut it off and begin again.
func TestSlowInstallation(t *testing.T) {
	t.Parallel()
	g, _ := slowly(t)
	testenv.Eventually(t, time.Minute, func() error {
		_, err := g.Claim(t.Context(), "r", 1)
		return err
	})
	if err := g.Close(); err != nil {
		t.Error(err)
	}
}

// Close ends an installation whose server no longer answers.
func TestCloseEndsAnInstallation(t *testing.T) {
	t.Parallel()
	g, line := slowly(t)
	line.Cut(testenv.CutBlackhole)
	closed := make(chan error, 1)
	go func() { closed <- g.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second): // the installation's own limit is 30 s
		t.Error("it does not end")
	}
	if _, err := g.Claim(t.Context(), "r", 1); !errors.Is(err, fencing.ErrGuardUnavailable) {
		t.Errorf("a claim after Close gives %v", err)
	}
}
