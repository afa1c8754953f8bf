package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// TestLeaseKeysThatDiffer: two servers have different FENCELOCK_LEASE_KEY_FILEs, and a rotation is done in the wrong
// and in the right order. A lease of one server gets 404 through the other while that server lacks the key, and both
// logs say why.
func TestLeaseKeysThatDiffer(t *testing.T) {
	t.Parallel()
	leaseKeysDiffer(t, redisAddrs(testenv.StartRedisN(t, 3)))
}

func TestLeaseKeysThatDifferInPostgres(t *testing.T) {
	testenv.Long(t, "that servers on a shared store do not compare their keys")
	t.Parallel()
	leaseKeysDiffer(t, "FENCELOCK_STORE="+testenv.StartPostgres(t).OwnerURL())
}

func leaseKeysDiffer(t *testing.T, env string) { //nolint:thelper // the test itself: a failure is at its line
	one, two := "k1 "+strings.Repeat("1e", 32)+"\n", "k2 "+strings.Repeat("2e", 32)+"\n"
	files := [2]string{filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")}
	begin := func(i int, keys string) *process {
		writeFile(t, files[i], keys)
		return start(t, env, "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=3s", "FENCELOCK_LEASE_KEY_FILE="+files[i])
	}
	a, b := begin(0, one), begin(1, two)
	differ := func(p *process, n int) {
		t.Helper()
		p.until(fmt.Sprintf("%d servers differ", n), func() bool { return strings.Contains(p.scrape(), fmt.Sprintf("\nfencelock_lease_keys_differ %d\n", n)) })
	}
	see := func(p *process, lease string, status int) {
		t.Helper()
		p.wants(p.ask(nil, "GET", "/leases/current", "", "Fencelock-Lease: "+lease), status)
	}
	warned := func(p *process, n int) { // of so many pairs of keys: a late server is forgotten, and warned of again
		t.Helper()
		pairs, differs := map[string]bool{}, false
		for line := range strings.Lines(p.Logs()) {
			switch {
			case strings.Contains(line, "the lease ids of all servers open here again"):
				differs = false
			case strings.Contains(line, "leases of another server get 404 here"):
				if differs || !strings.Contains(line, "FENCELOCK_LEASE_KEY_FILE begins with a key that this server's file lacks") {
					t.Errorf("it is warned of twice, or for another reason: %s", line)
				}
				_, pair, _ := strings.Cut(line, `"its_key"`)
				pairs[pair], differs = true, true
			}
		}
		if len(pairs) != n {
			t.Errorf("warnings of %d pairs of keys, want %d:\n%s", len(pairs), n, p.Logs())
		}
	}
	differ(a, 1)
	differ(b, 1)
	warned(a, 1)
	warned(b, 1)
	see(b, a.acquire(`{"resource":"first","ttl_ms":60000}`).LeaseID, http.StatusNotFound)

	writeFile(t, files[1], one)
	differ(a, 0)
	differ(b, 0)
	lease := a.acquire(`{"resource":"second","ttl_ms":60000}`).LeaseID
	see(b, lease, http.StatusOK)

	writeFile(t, files[0], two+one) // before the other server knows it
	differ(b, 1)
	differ(a, 0) // it opens what the other one seals
	warned(b, 2)
	see(b, lease, http.StatusOK)
	early := a.acquire(`{"resource":"third","ttl_ms":60000}`).LeaseID
	see(b, early, http.StatusNotFound)
	writeFile(t, files[1], one+two) // its lease has not been lost
	differ(b, 0)
	see(b, early, http.StatusOK)

	writeFile(t, files[1], two+one)
	tries := 0
	b.until("its key is the new one", func() bool {
		tries++
		var lease wire.Lease
		resp := b.ask(&lease, "POST", "/locks", fmt.Sprintf(`{"resource":"try/%d","ttl_ms":60000}`, tries))
		return resp.StatusCode == http.StatusCreated && lease.LeaseID[:6] == early[:6] // version and key
	})
	warned(a, 1)
	warned(b, 2)
	see(a, b.acquire(`{"resource":"fourth","ttl_ms":60000}`).LeaseID, http.StatusOK)
}
