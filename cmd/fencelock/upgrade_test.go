package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// later are the changes that turn this source into a next version: another version name, and new fields wherever
// docs/internals/formats.md lets a later version add some.
var later = []struct{ file, old, with string }{
	{"cmd/fencelock/internal/version/version.go", "func String() string {\n", "func String() string {\n\tif true {\n\t\treturn \"next\"\n\t}\n"},
	{"lockcore/redlock/meta.go", "metaSeparator + string(m.metadata)", "metaSeparator + string(m.metadata) + metaSeparator + \"next\""},
	{"storage/redisnode/vote.lua", "return cmsgpack.pack(replies)", "call('HSET', STATE, 'later', 'next')\nreturn cmsgpack.pack(replies)"},
	{"api/events/relay.go", "\tServer string  `json:\"server\"`\n", "\tServer string  `json:\"server\"`\n\tLater string `json:\"later\"`\n"},
}

// nextVersion builds this source with the changes in later. A real next release may change more, which is unknown
// here.
func nextVersion(t *testing.T) (program string) {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, replace := t.TempDir(), map[string]string{}
	for i, change := range later {
		path := filepath.Join(root, change.file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(text), change.old) != 1 {
			t.Fatalf("%s has not %q once", change.file, change.old)
		}
		replace[path] = filepath.Join(dir, fmt.Sprint(i, "-", filepath.Base(path)))
		writeFile(t, replace[path], strings.Replace(string(text), change.old, change.with, 1))
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "overlay.json"), string(overlay))
	program = filepath.Join(dir, "fencelock")
	if out, err := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	return program
}

// maxPlaceLost is how long a waiter may be missing in the queues of all nodes.
const maxPlaceLost = 3 * time.Second

// TestSoakRollingUpgrade replaces three servers by those of a next version, one after the other, and then by this
// version again, behind nginx and HAProxy. Meanwhile callers wait, keep leases alive, and pass locks on.
func TestSoakRollingUpgrade(t *testing.T) {
	testenv.Soak(t, "an upgrade, or the way back, that callers notice")
	next := nextVersion(t)
	for name, reach := range map[string]func(*fleet) string{"nginx": (*fleet).nginx, "haproxy": (*fleet).haproxy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3)
			url := reach(f)
			by := f.callers(url, client.WithPoll(2*time.Second))
			load := startCallers(t, by.clients)
			for _, program := range []string{next, ""} {
				f.program = program
				f.rollingUpgrade(by, url)
			}
			load.end()
		})
	}
}

// rollingUpgrade replaces the servers while the lock is held. Then the waiters pass it on.
func (f *fleet) rollingUpgrade(by *someClients, url string) {
	f.t.Helper()
	grantedByNext := f.isNext(0)
	release := f.hold(by.clients[0])
	waiting := f.queueUp(by.clients)
	stop := f.watchPlaces()
	for i := range f.servers {
		f.restart(i)
		if f.isNext(i) != (f.program != "") {
			f.t.Errorf("server %d is of the other version", i)
		}
		f.awaitUse(i, url)
	}
	f.wantLaterFields(grantedByNext)
	lost := stop()
	f.t.Logf("a waiter was in no queue for %s at most", lost.Round(time.Millisecond))
	if lost > maxPlaceLost {
		f.t.Errorf("a waiter had lost its place for %s, want %s at most", lost, maxPlaceLost)
	}
	release()
	waiting.inOrder(f.t, by.seen, f.machine)
}

// wantLaterFields checks that the nodes have the fields that the next version adds, so that this version meets them.
func (f *fleet) wantLaterFields(grantedByNext bool) {
	f.t.Helper()
	node := f.nodes[0].Client()
	if field, err := node.HGet(f.t.Context(), redisnode.OwnKey, "later").Result(); field != "next" {
		f.t.Errorf("a node's field of the next version is %q (%v)", field, err)
	}
	if lock, err := node.Get(f.t.Context(), "l:hot").Result(); err != nil || strings.HasSuffix(lock, "next") != grantedByNext {
		f.t.Errorf("the lock is %q (%v)", lock, err)
	}
	if lock := f.look(f.t.Context()); lock.Holder == nil || lock.HeldMS == nil {
		f.t.Errorf("the lock is shown as %+v", lock)
	}
}

// watchPlaces reads the queue until it is stopped. It returns the longest time for which a waiter was not in the
// queue.
func (f *fleet) watchPlaces() (stop func() (lost time.Duration)) {
	ctx, cancel := context.WithCancel(f.t.Context())
	result := make(chan time.Duration, 1)
	go func() {
		var lost time.Duration
		seen := map[string]time.Time{}
		for i := range callers {
			seen[waiterName(i)] = time.Now()
		}
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for _, w := range f.look(ctx).Queue {
				lost = max(lost, time.Since(seen[w.Holder]))
				seen[w.Holder] = time.Now()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		for _, at := range seen {
			lost = max(lost, time.Since(at))
		}
		result <- lost
	}()
	return func() time.Duration {
		cancel()
		return <-result
	}
}

// look returns the state of the lock from the first server that responds.
func (f *fleet) look(ctx context.Context) (lock wire.Lock) {
	for i := range f.ports {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.address(i)+"/locks/hot", http.NoBody)
		if err != nil {
			continue
		}
		if resp, err := http.DefaultClient.Do(req); err == nil && readJSON(resp, &lock) == nil && resp.StatusCode == http.StatusOK {
			return lock
		}
	}
	return wire.Lock{}
}

func (f *fleet) isNext(i int) bool {
	f.t.Helper()
	return strings.Contains(f.servers[i].scrape(), `version="next"`)
}

// busyCallers keep leases alive and pass others on.
type busyCallers struct {
	t     *testing.T
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu     sync.Mutex
	tokens map[string]fencing.Token
	grants int
	failed []error
}

func startCallers(t *testing.T, clients []*client.Client) *busyCallers {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	b := &busyCallers{t: t, stop: stop, tokens: map[string]fencing.Token{}}
	const kept, passing, resources = 5, 8, 3
	for i := range kept {
		b.ended.Go(func() { b.do(ctx, clients[i%len(clients)], fmt.Sprint("kept/", i), time.Hour) })
	}
	for i := range passing {
		b.ended.Go(func() {
			for ctx.Err() == nil {
				b.do(ctx, clients[i%len(clients)], fmt.Sprint("passed/", i%resources), 20*time.Millisecond)
			}
		})
	}
	return b
}

// do holds a lease until its time is over, or all callers end. Only these may end it.
func (b *busyCallers) do(over context.Context, c *client.Client, resource string, hold time.Duration) {
	const ttl = 6 * time.Second // extended every 2 s
	err := c.Do(b.t.Context(), resource, func(ctx context.Context, lease *client.Lease) error {
		b.mu.Lock()
		if b.grants++; lease.Token() <= b.tokens[resource] {
			b.failed = append(b.failed, fmt.Errorf("%s: token %d after %d", resource, lease.Token(), b.tokens[resource]))
		}
		b.tokens[resource] = lease.Token()
		b.mu.Unlock()
		select {
		case <-time.After(hold):
		case <-over.Done():
		case <-ctx.Done():
		}
		return context.Cause(ctx)
	}, client.TTL(ttl))
	if err != nil {
		b.mu.Lock()
		b.failed = append(b.failed, fmt.Errorf("%s: %w", resource, err))
		b.mu.Unlock()
	}
}

// end checks that no caller saw a failure.
func (b *busyCallers) end() {
	b.t.Helper()
	b.stop()
	b.ended.Wait()
	b.t.Logf("%d leases granted, %d calls failed or got a smaller token", b.grants, len(b.failed))
	for _, err := range b.failed {
		b.t.Error(err)
	}
}
