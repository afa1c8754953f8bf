package main

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// attacked is the built program under attack, with the headers of two callers: the owner of the lease, and a caller
// that may acquire only other resources.
type attacked struct {
	*process
	owner, other []string
}

// attackedServers starts the program on the embedded file and on three Redis,
// each with and without access control.
func attackedServers(t *testing.T, attack func(a attacked, again func() *process)) {
	t.Helper()
	for _, backend := range []string{"file", "redis"} {
		for _, guarded := range []bool{false, true} {
			t.Run(backend+" access="+strconv.FormatBool(guarded), func(t *testing.T) {
				env := []string{"FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "locks.db")}
				if backend == "redis" {
					env = []string{redisAddrs(testenv.StartRedisN(t, 3)), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s"}
				}
				var a attacked
				if guarded {
					file := filepath.Join(t.TempDir(), "access")
					a.owner = []string{bearer(tokenFor(t, file, "owner", "--acquire", "*", "--held", "2"))}
					a.other = []string{bearer(tokenFor(t, file, "other", "--acquire", "mine/"))}
					env = append(env, "FENCELOCK_ACCESS_FILE="+file)
				}
				a.process = start(t, env...)
				attack(a, func() *process { return start(t, env...) })
			})
		}
	}
}

func (a attacked) take(header []string, body string) (lease wire.Lease) {
	a.t.Helper()
	a.wants(a.ask(&lease, "POST", "/locks", body, header...), http.StatusCreated)
	return lease
}

// refused checks that every call with the id gets the response that a lease which has ended gets.
func (a attacked) refused(id string, header []string) {
	a.t.Helper()
	for _, call := range [][2]string{{"DELETE", ""}, {"POST", "/extend"}, {"GET", ""}} {
		var problem wire.Problem
		if resp := a.ask(&problem, call[0], "/leases/current"+call[1], "", append([]string{"Fencelock-Lease: " + id}, header...)...); resp.StatusCode != http.StatusNotFound || problem.Type != "/problems/lease-not-held" {
			a.t.Fatalf("%s with the id %s answers %d %s", call[0], id, resp.StatusCode, problem.Type)
		}
	}
}

// soundTokens checks that the next tokens are within a minute of the clock.
func (a attacked) soundTokens(resources ...string) {
	a.t.Helper()
	for _, resource := range resources {
		lease := a.take(a.owner, `{"resource":"`+resource+`"}`)
		if most := time.Now().Add(time.Minute).UnixMicro(); lease.FencingToken > most {
			a.t.Errorf("the next token of %s is %d, above %d", resource, lease.FencingToken, most)
		}
		a.wants(a.ask(nil, "DELETE", "/leases/current", "", append([]string{"Fencelock-Lease: " + lease.LeaseID}, a.owner...)...), http.StatusNoContent)
	}
}

// forgeries returns ids that an attacker may make from a real one.
func forgeries(id string, token int64) (ids []string) {
	raw, err := base64.RawURLEncoding.DecodeString(id)
	if err != nil {
		panic(err)
	}
	text := base64.RawURLEncoding.EncodeToString
	for i := range raw {
		edited := slices.Clone(raw)
		edited[i] ^= 1 << (i % 8)
		ids = append(ids, text(edited), text(slices.Delete(slices.Clone(raw), i, i+1)))
	}
	for _, number := range []uint64{5e15, 1<<53 - 2, 1<<53 - 1, 1 << 60} {
		long := binary.AppendUvarint(nil, number)
		for i := 0; i < len(raw); i += 7 {
			ids = append(ids, text(slices.Insert(slices.Clone(raw), i, long...)))
		}
		old := binary.AppendUvarint(nil, uint64(token))
		ids = append(ids, strings.Replace(id, text(old), text(long), 1)+"A")
	}
	// As ids were before they were sealed: version, value, token, time, resource.
	old := append([]byte{1}, make([]byte, 20)...)
	old = binary.AppendUvarint(old, uint64(fencing.MaxToken)-1)
	old = binary.AppendUvarint(old, uint64(time.Now().UnixMilli()))
	return append(ids, text(append(old, "free"...)), id+".k1.AAAA", "x", strings.Repeat("A", 9000))
}

// Nobody can make up or edit a lease id: no lease changes, and an edited id gets the response that the id of an ended
// lease gets.
func TestForgedLeaseIDs(t *testing.T) {
	t.Parallel()
	stranger := start(t) // another cluster
	foreign := stranger.acquire(`{"resource":"free","ttl_ms":60000}`)
	attackedServers(t, func(a attacked, again func() *process) {
		ended := a.take(a.owner, `{"resource":"free","ttl_ms":60000}`)
		a.wants(a.ask(nil, "DELETE", "/leases/current", "", append([]string{"Fencelock-Lease: " + ended.LeaseID}, a.owner...)...), http.StatusNoContent)
		held := a.take(a.owner, `{"resource":"held","ttl_ms":60000}`)
		for _, lease := range []wire.Lease{ended, held} {
			for i, id := range forgeries(lease.LeaseID, lease.FencingToken) {
				a.refused(id, a.owner)
				if i%20 > 0 {
					continue
				} // else a busy machine has it expire
				a.wants(a.ask(nil, "POST", "/leases/current/extend", "", append([]string{"Fencelock-Lease: " + held.LeaseID}, a.owner...)...), http.StatusOK)
			}
		}
		a.refused(foreign.LeaseID, a.owner)
		if a.other != nil {
			a.refused(held.LeaseID, a.other)
			mine := a.take(a.other, `{"resource":"mine/a"}`)
			a.refused(mine.LeaseID, a.owner)
			a.wants(a.ask(nil, "DELETE", "/leases/current", "", append([]string{"Fencelock-Lease: " + mine.LeaseID}, a.other...)...), http.StatusNoContent)
			// The number of leases is not evaded.
			second := a.take(a.owner, `{"resource":"second"}`)
			for _, id := range forgeries(second.LeaseID, second.FencingToken)[:20] {
				_ = a.ask(nil, "POST", "/leases/current/extend", "", append([]string{"Fencelock-Lease: " + id}, a.owner...)...)
				_ = a.ask(nil, "DELETE", "/leases/current", "", append([]string{"Fencelock-Lease: " + id}, a.owner...)...)
			}
			a.wants(a.ask(nil, "POST", "/locks", `{"resource":"third"}`, a.owner...), http.StatusTooManyRequests)
			a.wants(a.ask(nil, "DELETE", "/leases/current", "", append([]string{"Fencelock-Lease: " + second.LeaseID}, a.owner...)...), http.StatusNoContent)
		}
		var now wire.Lease
		a.wants(a.ask(&now, "GET", "/leases/current", "", append([]string{"Fencelock-Lease: " + held.LeaseID}, a.owner...)...), http.StatusOK)
		a.soundTokens("free", "never used", "second")
		a.wants(a.ask(nil, "DELETE", "/leases/current", "", append([]string{"Fencelock-Lease: " + held.LeaseID}, a.owner...)...), http.StatusNoContent)
		a.Kill()
		a.process = again()
		a.soundTokens("free", "held", "another")
	})
}

// A lease cannot be held for longer than FENCELOCK_MAX_HOLD, whatever its client sends.
func TestMaxHoldIsNotEvaded(t *testing.T) {
	testenv.Long(t, "a longest hold that extends of several servers evade")
	t.Parallel()
	p := start(t, "FENCELOCK_MAX_TTL=2s", "FENCELOCK_MAX_HOLD=2s", "FENCELOCK_NODE_TIMEOUT=200ms")
	lease := p.acquire(`{"resource":"r","ttl_ms":2000}`)
	var longest int64
	p.until("the lease cannot be extended", func() bool {
		for _, id := range append(forgeries(lease.LeaseID, lease.FencingToken)[:60], lease.LeaseID) {
			var extended wire.Lease
			resp := p.ask(&extended, "POST", "/leases/current/extend", `{"ttl_ms":2000}`, "Fencelock-Lease: "+id)
			if resp.StatusCode == http.StatusOK && extended.MaxHoldRemainingMS != nil {
				longest = max(longest, *extended.MaxHoldRemainingMS)
			}
			if id == lease.LeaseID && resp.StatusCode != http.StatusOK {
				return true
			}
		}
		return false
	})
	if longest > 2000 {
		t.Errorf("it could be held for another %d ms", longest)
	}
}

// TestTheSecretIsReplaced replaces the secret while servers run and leases are live.
func TestTheSecretIsReplaced(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	env := []string{redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s"}
	p, q := start(t, env...), start(t, env...)
	first := p.acquire(`{"resource":"a","ttl_ms":60000}`)
	alive := func(id string, status int) {
		t.Helper()
		for _, server := range []*process{p, q} {
			server.untilAnswer(status, "POST", "/leases/current/extend", `{"ttl_ms":60000}`, "Fencelock-Lease: "+id) // a busy machine answers 503 now and then
		}
	}
	rotated := func(want int, args ...string) string {
		t.Helper()
		code, out := outcome(t, env, append([]string{"secret", "rotate"}, args...)...)
		if code != want {
			t.Fatalf("exit code %d:\n%s", code, out)
		}
		return out
	}
	key := func(id string) string { // the part that names the key
		raw, _ := base64.RawURLEncoding.DecodeString(id)
		return string(raw[:5])
	}
	if out := rotated(0); !strings.Contains(out, `"act":"rotate-secret","result":"done"`) {
		t.Errorf("no line in the audit log:\n%s", out)
	}
	alive(first.LeaseID, http.StatusOK)
	var second wire.Lease
	keyed := []string{"POST", "/locks", `{"resource":"b","ttl_ms":60000}`, "Idempotency-Key: k"}
	p.wants(p.ask(&second, keyed[0], keyed[1], keyed[2], keyed[3]), http.StatusCreated)
	p.until("the new secret is used", func() bool { // each time the key finds its lease
		token := second.FencingToken
		if p.ask(&second, keyed[0], keyed[1], keyed[2], keyed[3]).StatusCode == http.StatusServiceUnavailable {
			return false // a busy machine
		}
		if second.FencingToken != token {
			t.Fatalf("the key got token %d, and before %d", second.FencingToken, token)
		}
		return key(second.LeaseID) != key(first.LeaseID)
	})
	alive(second.LeaseID, http.StatusOK)
	alive(first.LeaseID, http.StatusOK)

	if out := rotated(1); !strings.Contains(out, "--force") { // the first one's lease may live
		t.Errorf("the refusal does not say what to do:\n%s", out)
	}
	alive(first.LeaseID, http.StatusOK)
	// It is true of both leases: the first one's id is under the secret that was deleted.
	if out := rotated(0, "--force"); !strings.Contains(out, "under it and under the previous secret are accepted, and older ones are refused") {
		t.Errorf("the ids that are accepted now:\n%s", out)
	}
	p.untilAnswer(http.StatusNotFound, "GET", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID)
	q.untilAnswer(http.StatusNotFound, "GET", "/leases/current", "", "Fencelock-Lease: "+first.LeaseID)
	alive(second.LeaseID, http.StatusOK)
}

// A node that waits in quarantine, is frozen or down does not delay a rotation of the secret, and gets the new secret
// later.
func TestTheSecretIsReplacedUnderFaults(t *testing.T) {
	testenv.Long(t, "a secret that is replaced while a server is away")
	t.Parallel()
	for name, fault := range map[string]func(*testenv.Redis){
		"restarted": func(r *testenv.Redis) { r.Kill(); r.Restart() }, // in quarantine for a minute
		"frozen":    (*testenv.Redis).Freeze,
		"down":      (*testenv.Redis).Kill,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodes := testenv.StartRedisN(t, 3)
			env := []string{redisAddrs(nodes), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s"} // two nodes have to reply
			p := start(t, env...)
			lease := p.acquire(`{"resource":"a","ttl_ms":60000}`)
			fault(nodes[2])
			for _, args := range [][]string{{"secret", "rotate"}, {"secret", "rotate", "--force"}} {
				if code, out := outcome(t, env, args...); code != 0 {
					t.Fatalf("%s: exit code %d:\n%s", strings.Join(args, " "), code, out)
				}
			}
			p.untilAnswer(http.StatusNotFound, "GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
		})
	}
}

// A key file replaces the cluster's own secret, and is read again when it changes.
func TestLeaseKeysOfAFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	keys, data := filepath.Join(dir, "keys"), filepath.Join(dir, "locks.db")
	one, two := "k1 "+strings.Repeat("1e", 32)+"\n", "k2 "+strings.Repeat("2e", 32)+"\n"
	writeFile(t, keys, one)
	env := []string{"FENCELOCK_DATA=" + data, "FENCELOCK_LEASE_KEY_FILE=" + keys}
	p := start(t, env...)
	lease := p.acquire(`{"resource":"a","ttl_ms":60000}`)
	writeFile(t, keys, two+one)
	p.until("the file is read again", func() bool { return strings.Contains(p.Logs(), "FENCELOCK_LEASE_KEY_FILE") })
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	later := p.acquire(`{"resource":"b","ttl_ms":60000}`)
	writeFile(t, keys, two)
	p.untilAnswer(http.StatusNotFound, "GET", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+later.LeaseID), http.StatusOK)
	p.Kill()

	code, out := outcome(t, env, "secret", "rotate")
	if code != cli.ExitUsage || !strings.Contains(out, "rotate the keys in that file") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	writeFile(t, keys, "k1 hunter2\n")
	if code, out := outcome(t, env, "serve"); code != cli.ExitUsage || !strings.Contains(out, "FENCELOCK_LEASE_KEY_FILE") || strings.Contains(out, "hunter2") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	p = start(t, env[0]) // the cluster's own secret is there all the same
	p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+later.LeaseID), http.StatusNotFound)
	p.Kill()
	if code, out := outcome(t, env[:1], "secret", "rotate"); code != 0 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// A list reveals nothing about resources that its caller may not read: neither a name, nor that there are any.
func TestListsHideNames(t *testing.T) {
	t.Parallel()
	const readable = "mine/"
	attackedServers(t, func(a attacked, _ func() *process) {
		if a.other == nil {
			return // everybody may read everything
		}
		taken := make(map[string]bool)
		for _, resource := range []string{"mine/a", "mine/b", "mine/c", "mine/d"} {
			a.take(a.other, `{"resource":"`+resource+`"}`)
			taken[resource] = true
		}
		a.take(a.owner, `{"resource":"hidden/a"}`)
		a.take(a.owner, `{"resource":"mine"}`) // "mine/" is what the other may read
		for _, prefix := range []string{"", "m", "mine", "mine/", "hidden/", "hidden/a", "z"} {
			for _, limit := range []string{"1", "2", "4", "5"} {
				seen, cursor := map[string]bool{}, ""
				for pages := 0; ; pages++ {
					var page wire.LockPage
					path := "/locks?limit=" + limit + "&prefix=" + prefix + "&cursor=" + cursor
					a.wants(a.ask(&page, "GET", path, "", a.other...), http.StatusOK)
					for _, lock := range page.Locks {
						seen[lock.Resource] = true
					}
					if len(page.Locks) == 0 && page.NextCursor != "" || pages > 4 {
						a.t.Fatalf("prefix %q, limit %s: page %d is %+v", prefix, limit, pages+1, page)
					}
					if cursor = page.NextCursor; cursor == "" {
						break
					}
					a.wants(a.ask(nil, "GET", "/locks?cursor="+cursor, "", a.owner...), http.StatusBadRequest)
				}
				want := 0
				if prefix == readable[:min(len(prefix), len(readable))] {
					want = len(taken)
				}
				if len(seen) != want || seen["mine"] {
					a.t.Errorf("prefix %q, limit %s: %v", prefix, limit, seen)
				}
			}
		}
	})
}
