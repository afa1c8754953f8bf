package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/check"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// An etcd that cannot be used is refused at the start, and nothing is changed.
func TestEtcdThatCannotBeUsed(t *testing.T) {
	testenv.Long(t, "an etcd that cannot be used and is not named")
	t.Parallel()
	plain := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	secure := testenv.StartEtcd(t, 1, testenv.EtcdOptions{TLS: true})
	users := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	users.Ctl("user", "add", "root:right")
	users.Ctl("user", "grant-role", "root", "root")
	users.Ctl("user", "add", "app:right")
	users.Ctl("auth", "enable")
	plain.Ctl("put", "/theirs/key", "value")
	cert, _ := secure.Certificate()
	host := func(e *testenv.Etcd) string { return e.Members[0].Addr() }
	for name, c := range map[string]struct {
		store string
		says  []string
	}{
		"wrong password":        {"etcd://app:hunter2@" + host(users) + "/p", []string{`refuses the user "app"`, "correct them"}},
		"no user":               {"etcd://" + host(users) + "/p", []string{"requires a user"}},
		"no rights":             {"etcd://app:right@" + host(users) + "/p", []string{"/p/", "grant-permission"}},
		"another's prefix":      {"etcd://" + host(plain) + "/theirs", []string{"other programs have keys", "/theirs/key", "the prefix of the servers that run"}},
		"TLS too many":          {"etcds://" + host(plain) + "/p?ca=" + cert, []string{"etcd:// for one without"}},
		"unknown authority":     {"etcds://" + host(secure) + "/p", []string{"not trusted", "?ca="}},
		"no client certificate": {"etcds://" + host(secure) + "/p?ca=" + cert, []string{"?cert= and &key="}},
		"no such file":          {"etcds://" + host(secure) + "/p?ca=/does/not/exist", []string{"the option ca", "no such file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_STORE=" + c.store}
			code, said := outcome(t, settings, "serve")
			if code != cli.ExitFailed {
				t.Errorf("exit code %d, want %d", code, cli.ExitFailed)
			}
			for _, part := range append(c.says, "FENCELOCK_STORE") {
				if !strings.Contains(said, part) {
					t.Errorf("%q is not said:\n%s", part, said)
				}
			}
			if strings.Contains(said, "hunter2") {
				t.Errorf("a password is shown:\n%s", said)
			}
		})
	}
	t.Cleanup(func() {
		if keys := plain.Ctl("get", "", "--prefix", "--keys-only"); strings.TrimSpace(keys) != "/theirs/key" {
			t.Errorf("keys were made:\n%s", keys)
		}
	})
}

// A server that meets the locks of another version must not use a second place for its own: two places would grant
// the same resource twice. A server that starts beside such locks says so.
func TestEtcdBesideAnotherVersion(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	etcd.Ctl("put", "/locks/head", "\x03 the head of another version")
	settings := []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_STORE=" + etcd.URL("locks")}
	code, said := outcome(t, settings, "serve")
	if code != cli.ExitFailed || !strings.Contains(said, "run that version") || !strings.Contains(said, "docs/how-to/upgrade.md") || strings.Contains(said, "another prefix") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
	beside := "FENCELOCK_STORE=" + etcd.URL("other")
	_, report := checks(t, cli.ExitRisky, beside)
	finds(t, report, check.Risky, "FENCELOCK_STORE", "locks of fencelock below /locks/")
	p := start(t, beside)
	if log := p.Logs(); !strings.Contains(log, "the locks of another fencelock") || !strings.Contains(log, "other=/locks/") && !strings.Contains(log, `"other":"/locks/"`) {
		t.Errorf("the log does not name the other locks:\n%s", log)
	}
}

// An etcd with TLS does not respond to a server that uses none. The server cannot tell that from an etcd that is
// down. So it waits, and its log names the scheme for TLS.
func TestEtcdWithTLSThatIsNotSpoken(t *testing.T) {
	testenv.Long(t, "an etcd URL without TLS that says nothing about it")
	t.Parallel()
	secure := testenv.StartEtcd(t, 1, testenv.EtcdOptions{TLS: true})
	p := startUnready(t, "http", http.DefaultClient, "FENCELOCK_STORE=etcd://"+secure.Members[0].Addr()+"/p")
	p.until("the log says how to speak TLS", func() bool { return strings.Contains(p.Logs(), "etcds://") })
}

// TestEtcdWithTLSAndAUser uses TLS with a client certificate, and a user with a password.
func TestEtcdWithTLSAndAUser(t *testing.T) {
	t.Parallel()
	secure := testenv.StartEtcd(t, 1, testenv.EtcdOptions{TLS: true})
	p := start(t, "FENCELOCK_STORE="+secure.URL("locks"))
	p.release(p.acquire(`{"resource":"a","ttl_ms":2000}`))

	users := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	for _, command := range []string{
		"user add root:right", "user grant-role root root", "user add locks:pass@word", "role add locks", //nolint:dupword // a user and a role
		"role grant-permission locks --prefix=true readwrite /locks/", "user grant-role locks locks", "auth enable", //nolint:dupword // the same
	} {
		users.Ctl(strings.Fields(command)...)
	}
	p = start(t, "FENCELOCK_STORE="+strings.Replace(users.URL("locks"), "//", "//locks:pass%40word@", 1))
	p.release(p.acquire(`{"resource":"a","ttl_ms":2000}`))
}

// Servers continue when members fail: a follower, the leader, a frozen leader.
func TestEtcdFailsOver(t *testing.T) {
	testenv.Long(t, "a service that a new etcd leader costs more than its election")
	t.Parallel()
	etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{})
	one, other := start(t, "FENCELOCK_STORE="+etcd.URL("locks")), start(t, "FENCELOCK_STORE="+etcd.URL("locks"))
	kept := one.acquire(`{"resource":"kept","ttl_ms":60000}`)
	l, m := startLoad(one, 4), startLoad(other, 4)
	both := func(since time.Time) time.Duration { return max(l.back(since), m.back(since)).Round(time.Millisecond) }
	both(time.Now())

	leader := etcd.Leader()
	leader.Kill()
	t.Logf("kill -9 of the leader: service is back after %s", both(time.Now()))
	leader.Restart()
	follower := etcd.Follower()
	follower.Kill()
	t.Logf("kill -9 of a follower: service is back after %s", both(time.Now()))
	follower.Restart()
	leader = etcd.Leader()
	leader.Freeze()
	t.Logf("SIGSTOP of the leader: service is back after %s", both(time.Now()))
	leader.Thaw()
	both(time.Now())
	follower = etcd.Follower()
	follower.Freeze()
	t.Logf("SIGSTOP of a follower: service is back after %s", both(time.Now()))
	follower.Thaw()
	l.end()
	m.end()
	one.wants(one.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+kept.LeaseID), http.StatusOK)
	one.release(kept)
}

// A server that stops in the middle of its work does not stop the others for long.
func TestEtcdWithAFrozenServer(t *testing.T) {
	t.Parallel()
	machine := testenv.MeasureLateness(t)
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	p, other := start(t, "FENCELOCK_STORE="+etcd.URL("locks")), start(t, "FENCELOCK_STORE="+etcd.URL("locks"))
	mine, theirs := startLoad(p, 4), startLoad(other, 4)
	theirs.back(time.Now())
	for range 3 {
		other.Freeze()
		if took := mine.back(time.Now()); took > 3*time.Second+2*machine.Longest() {
			t.Errorf("the other server serves %s after one was stopped; the machine was late by %s", took, machine.Longest())
		}
		other.Thaw()
		theirs.back(time.Now())
	}
	mine.end()
	theirs.end()
}

// After a restore from a snapshot the servers grant nothing for the longest TTL. Then tokens rise.
func TestEtcdIsRestored(t *testing.T) {
	testenv.Long(t, "a restored etcd that brings leases back")
	t.Parallel()
	const maxTTL = 2 * time.Second
	etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{})
	p := start(t, "FENCELOCK_STORE="+etcd.URL("locks"), "FENCELOCK_MAX_TTL=2s")
	first := p.acquire(`{"resource":"a","ttl_ms":2000}`)
	p.release(first)
	snapshot := etcd.Snapshot()
	lost := p.acquire(`{"resource":"a","ttl_ms":2000}`)
	p.release(lost)
	etcd.Restore(snapshot, "")
	restored := time.Now()
	testenv.Eventually(t, time.Minute, func() error {
		if resp, err := p.try(t.Context(), nil, "GET", "/readyz", ""); err != nil || resp.StatusCode != http.StatusServiceUnavailable {
			return errors.New("it is ready")
		}
		return nil
	})
	p.untilReady()
	took := time.Since(restored)
	if took < maxTTL {
		t.Errorf("it serves %s after the restore: earlier leases may live for %s", took, maxTTL)
	}
	t.Logf("service is back %s after the restore, with a longest TTL of %s", took.Round(time.Millisecond), maxTTL)
	if risen := p.acquire(`{"resource":"a","ttl_ms":2000}`); risen.FencingToken <= lost.FencingToken {
		t.Errorf("token %d after %d", risen.FencingToken, lost.FencingToken)
	}
}

// After a restore, each lease that one server grants is known to the other. An extend through the other gets 200, or
// 503 while that server has not read etcd yet. It never gets 404, which is final.
func TestEtcdExtendsElsewhereAfterARestore(t *testing.T) {
	testenv.Long(t, "an extend after a restore of etcd that another server grants")
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	settings := []string{"FENCELOCK_STORE=" + etcd.URL("locks"), "FENCELOCK_MAX_TTL=2s"}
	servers := []*process{start(t, settings...), start(t, settings...)}
	etcd.Restore(etcd.Snapshot(), "")
	var all sync.WaitGroup
	var extended, late atomic.Int64
	for i := range 8 {
		p, other := servers[i%2], servers[1-i%2]
		all.Go(func() {
			for n := 0; extended.Load() < 1000 && !t.Failed(); n++ {
				var lease wire.Lease
				body := fmt.Sprintf(`{"resource":"r%d/%d","ttl_ms":2000}`, i, n)
				sent := time.Now()
				resp, err := p.try(t.Context(), &lease, "POST", "/locks", body)
				if err != nil || resp.StatusCode != http.StatusCreated {
					continue
				}
				resp, err = other.try(t.Context(), nil, "POST", "/leases/current/extend", "", "Fencelock-Lease: "+lease.LeaseID)
				switch {
				case err == nil && resp.StatusCode == http.StatusOK:
					extended.Add(1)
				case err == nil && (resp.StatusCode == http.StatusServiceUnavailable || time.Since(sent) > 2*time.Second): // it may have expired
					late.Add(1)
				default:
					t.Errorf("after %d extends one gets %v (%v)", extended.Load(), resp, err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d extends through the other server, and %d times 503 or too late", extended.Load(), late.Load())
}

// A part of the log is deleted. A server that starts then grants nothing while an earlier lease is valid, and
// afterwards serves with the others.
func TestEtcdLosesItsLog(t *testing.T) {
	testenv.Long(t, "an etcd without its log that is trusted")
	t.Parallel()
	const maxTTL = 3 * time.Second
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	settings := []string{"FENCELOCK_STORE=" + etcd.URL("locks"), "FENCELOCK_MAX_TTL=3s"}
	p, other := start(t, settings...), start(t, settings...)
	held := p.acquire(`{"resource":"a","ttl_ms":3000}`)
	granted := time.Now()
	other.Signal(syscall.SIGTERM)
	other.exit()
	etcd.Ctl("del", "--prefix", "/locks/log/")
	other = start(t, settings...)
	risen := other.acquire(`{"resource":"a","ttl_ms":3000,"wait_ms":20000}`)
	if took := time.Since(granted); took < maxTTL || risen.FencingToken <= held.FencingToken {
		t.Errorf("token %d after %s, and %d before", risen.FencingToken, took, held.FencingToken)
	}
	other.release(risen)
	p.untilReady()
	p.release(p.acquire(`{"resource":"a","ttl_ms":3000}`))
}

// Servers without clients write nothing, so that etcd's history does not grow: they sweep what has ended, and after
// that etcd's revision does not change.
func TestEtcdIdleWritesNothing(t *testing.T) {
	testenv.Long(t, "a server that writes to etcd while nothing happens")
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	p, other := start(t, "FENCELOCK_STORE="+etcd.URL("locks")), start(t, "FENCELOCK_STORE="+etcd.URL("locks"))
	p.release(p.acquire(`{"resource":"a","ttl_ms":1000}`))
	other.release(other.acquire(`{"resource":"a","ttl_ms":1000}`))
	revision := func() string {
		_, rest, _ := strings.Cut(etcd.Ctl("get", "none", "-w", "json"), `"revision":`)
		number, _, _ := strings.Cut(rest, ",")
		return number
	}
	testenv.Eventually(t, time.Minute, func() error {
		before := revision()
		<-time.After(3 * time.Second)
		if after := revision(); before == "" || after != before {
			return fmt.Errorf("idle servers write: revision %s after %s", after, before)
		}
		return nil
	})
}

// A server without work costs little: under ten requests a second and 1 % of a core.
func TestSoakEtcdIdle(t *testing.T) {
	testenv.Soak(t, "what an idle server costs on etcd")
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	p := start(t, "FENCELOCK_STORE="+etcd.URL("locks"))
	p.release(p.acquire(`{"resource":"orders/1","ttl_ms":60000}`))
	const window = 5 * time.Second
	before, spent := etcd.Requests(), p.cpu()
	<-time.After(window)
	cores := (p.cpu() - spent).Seconds() / window.Seconds()
	requests := float64(etcd.Requests()-before) / window.Seconds()
	t.Logf("an idle server: %.1f requests a second, %.2f %% of a core", requests, 100*cores)
	if requests > 10 || cores > 0.01 {
		t.Errorf("an idle server costs %.1f requests a second and %.2f %% of a core", requests, 100*cores)
	}
}

// When the leader of etcd is stopped, the service is away for as long as etcd's election takes. A bare client of etcd
// that writes to a follower waits about as long, and both wait longer if etcd's election timeout is longer.
func TestEtcdLeaderIsStopped(t *testing.T) {
	testenv.Long(t, "a service that an etcd leader's end costs more than its election")
	t.Parallel()
	for name, args := range map[string][]string{
		"an election timeout of 1 s": nil, // the default
		"an election timeout of 4 s": {"--heartbeat-interval", "400", "--election-timeout", "4000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{Args: args})
			p := start(t, "FENCELOCK_STORE="+etcd.URL("locks"))
			load := startLoad(p, 4)
			load.back(time.Now())
			leader := etcd.Leader()
			bare, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Follower().Addr()}, DialTimeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = bare.Close() }()
			leader.Freeze()
			frozen := time.Now()
			var elected time.Duration
			testenv.Eventually(t, time.Minute, func() error {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				_, err = bare.Put(ctx, "bare", "x")
				elected = time.Since(frozen)
				return err
			})
			const under = 300 * time.Millisecond // an answer that was under way is no proof
			took := under + load.back(frozen.Add(under))
			if took > elected+3*time.Second || args != nil && min(took, elected) < 2*time.Second {
				t.Errorf("a bare client writes after %s, and fencelock grants after %s", elected, took)
			}
			t.Logf("a bare client writes after %s, and fencelock grants after %s", elected.Round(time.Millisecond), took.Round(time.Millisecond))
			leader.Thaw()
			load.end()
		})
	}
}
