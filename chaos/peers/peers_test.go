package peers

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/chaos"
	"github.com/fencelock/fencelock/internal/testenv"
)

var rounds = flag.Int("rounds", 1, "rounds of each fault for each lock")

// contender is a lock, with the servers that it runs on.
type contender struct {
	name   string
	lock   lock
	redis  []*testenv.Redis    // its own; nil for etcd
	clocks []*chaos.Clock      // of these nodes, as far as clocks can be shifted
	etcd   *testenv.EtcdMember // nil for the others
	ready  func() error        // all is well again
}

// score is a line of the table.
type score struct {
	rounds, double, tokens, lost, stale int
	away                                time.Duration
	tokenless                           bool
	note                                string
}

// fault is done to a contender in each round.
type fault struct {
	name string
	run  func(t *testing.T, c *contender, round int, s *score)
}

func faults() []fault {
	return []fault{
		{"restart of every node, no persistence", whileHeld(restartAll)},
		{"a majority of the nodes wiped", whileHeld(wipeMajority)},
		{"clocks of a majority +20 s", whileHeld(jumpMajority)},
		{"holder paused past its lease, then writes", pausedWriter},
		{"extension after somebody else's lease", lateExtension},
	}
}

func TestPeers(t *testing.T) {
	var table strings.Builder
	table.WriteString("| fault | lock | rounds | double leases | tokens repeated or out of order | lost updates | stale extensions | without service, a round |\n")
	table.WriteString("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	all := contenders(t)
	for _, f := range faults() {
		for _, c := range all {
			s := &score{}
			for round := range *rounds {
				f.run(t, c, round, s)
				testenv.Eventually(t, time.Minute, c.ready)
			}
			table.WriteString(s.line(f.name, c.name))
			t.Logf("%s", s.line(f.name, c.name))
			if c.name == "fencelock" && s.tokens+s.lost+s.stale > 0 {
				t.Errorf("fencelock: %+v", *s)
			}
		}
	}
	fmt.Printf("\n%s\n", table.String())
}

func (s *score) line(fault, lock string) string {
	if s.note != "" {
		return fmt.Sprintf("| %s | %s | %s | | | | | |\n", fault, lock, s.note)
	}
	tokens := strconv.Itoa(s.tokens)
	if s.tokenless {
		tokens = "no tokens"
	}
	return fmt.Sprintf("| %s | %s | %d | %d | %s | %d | %d | %.1f s |\n", fault, lock,
		s.rounds, s.double, tokens, s.lost, s.stale, s.away.Seconds()/float64(s.rounds))
}

// contenders starts every lock on servers of its own, all of one kind.
func contenders(t *testing.T) []*contender {
	t.Helper()
	fence := onRedis(t, "fencelock", 5)
	fence.lock = &fencelock{url: startFencelock(t, fence.redis)}
	fence.ready = func() error { return ready(t.Context(), fence.lock) }
	sync := onRedis(t, "redsync v4", 5)
	sync.lock = newRedsync(clientsOf(sync.redis))
	revive := onRedis(t, "redsync v4, SetNXOnExtend", 5)
	revive.lock = newRedsync(clientsOf(revive.redis), redsync.WithSetNXOnExtend())
	single := onRedis(t, "SET NX PX on one Redis", 1)
	single.lock = &setnx{client: single.redis[0].Client(), stored: records{}}
	all := []*contender{fence, sync, revive, single}
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{}).Members[0]
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Addr()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	all = append(all, &contender{name: "etcd, one member", lock: &etcdLock{client: client, stored: records{}}, etcd: etcd, ready: func() error { return nil }})
	for _, c := range all {
		testenv.Eventually(t, time.Minute, func() error { return ready(t.Context(), c.lock) })
	}
	return all
}

// onRedis starts nodes whose clocks can be shifted, if this machine allows that.
func onRedis(t *testing.T, name string, n int) *contender {
	t.Helper()
	c := &contender{name: name, ready: func() error { return nil }}
	dir := t.TempDir()
	library, err := chaos.BuildShim(dir)
	for i := range n {
		var opts []testenv.RedisOption
		if err == nil {
			clock, opt := chaos.NewClock(t, dir, library, i)
			c.clocks, opts = append(c.clocks, clock), append(opts, opt)
		}
		c.redis = append(c.redis, testenv.StartRedis(t, opts...))
	}
	return c
}

func clientsOf(nodes []*testenv.Redis) (clients []*redis.Client) {
	for _, n := range nodes {
		clients = append(clients, n.Client())
	}
	return clients
}

func startFencelock(t *testing.T, nodes []*testenv.Redis) (url string) {
	t.Helper()
	addrs := make([]string, 0, len(nodes))
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	return testenv.StartFencelock(t, "FENCELOCK_REDIS_ADDRS="+strings.Join(addrs, ","), "FENCELOCK_DATA="+t.TempDir()+"/guard.db",
		"FENCELOCK_MAX_TTL="+ttl.String(), "FENCELOCK_NODE_TIMEOUT=200ms").URL()
}

// ready locks a fresh resource.
func ready(ctx context.Context, l lock) error {
	got, err := l.acquire(ctx, fmt.Sprint("ready/", time.Now().UnixNano()))
	if err != nil {
		return err
	}
	return got.release(ctx)
}

// whileHeld makes a fault while A holds the lock. B tries to lock until A's lease is over by A's own clock.
func whileHeld(happen func(t *testing.T, c *contender) (note string)) func(*testing.T, *contender, int, *score) {
	return func(t *testing.T, c *contender, round int, s *score) {
		t.Helper()
		ctx, resource := t.Context(), fmt.Sprint("held/", round, "/", time.Now().UnixNano())
		a := mustAcquire(t, c, resource)
		if s.note = happen(t, c); s.note != "" {
			return
		}
		s.rounds++
		served := whenServed(ctx, c.lock)
		b := tryUntil(ctx, c.lock, resource, a.until())
		if b != nil && time.Now().Before(a.until()) {
			s.double++
		}
		s.away += <-served
		if b == nil {
			b = tryUntil(ctx, c.lock, resource, time.Now().Add(2*ttl))
		}
		s.compare(a, b)
	}
}

// whenServed returns how long it took until a fresh resource could be locked.
func whenServed(ctx context.Context, l lock) <-chan time.Duration {
	took, began := make(chan time.Duration, 1), time.Now()
	go func() {
		for ready(ctx, l) != nil && ctx.Err() == nil {
			<-time.After(20 * time.Millisecond)
		}
		took <- time.Since(began)
	}()
	return took
}

// compare counts B's token unless it is larger than A's.
func (s *score) compare(a, b lease) {
	s.tokenless = a.token() == 0
	if b != nil && !s.tokenless && b.token() <= a.token() {
		s.tokens++
	}
}

func mustAcquire(t *testing.T, c *contender, resource string) (l lease) {
	t.Helper()
	testenv.Eventually(t, 20*time.Second, func() (err error) {
		l, err = c.lock.acquire(t.Context(), resource)
		return err
	})
	return l
}

// tryUntil tries to lock until it gets the lock, or the time is over.
func tryUntil(ctx context.Context, l lock, resource string, end time.Time) lease {
	for time.Now().Before(end) {
		if got, err := l.acquire(ctx, resource); err == nil {
			return got
		}
		<-time.After(20 * time.Millisecond)
	}
	return nil
}

func restartAll(_ *testing.T, c *contender) string {
	if c.etcd != nil {
		c.etcd.Kill()
		c.etcd.Restart()
	}
	for _, n := range c.redis {
		n.Kill()
		n.Restart()
	}
	return ""
}

func wipeMajority(_ *testing.T, c *contender) string {
	if c.etcd != nil {
		return "not tried: etcd gives its only member up"
	}
	for _, n := range c.redis[:len(c.redis)/2+1] {
		n.Kill()
		n.Wipe()
		n.Restart()
	}
	return ""
}

func jumpMajority(t *testing.T, c *contender) string {
	t.Helper()
	if len(c.clocks) == 0 {
		return "CLOCK NOT SHIFTED"
	}
	for _, clock := range c.clocks[:len(c.clocks)/2+1] {
		if err := clock.Jump(20 * time.Second); err != nil {
			t.Fatal(err)
		}
	}
	return ""
}

// pausedWriter: A holds the lock, reads, and is stopped. B takes over, writes, and is told that its write succeeded.
// A continues, and writes a value that it computed from what it had read.
func pausedWriter(t *testing.T, c *contender, round int, s *score) {
	t.Helper()
	ctx, resource := t.Context(), fmt.Sprint("paused/", round, "/", time.Now().UnixNano())
	a := mustAcquire(t, c, resource)
	s.rounds++
	b := tryUntil(ctx, c.lock, resource, time.Now().Add(4*ttl))
	if b == nil {
		t.Fatalf("%s: the lock of a stopped holder never ends", c.name)
	}
	if time.Now().Before(a.until()) {
		s.double++
	}
	s.compare(a, b)
	if err := b.write(ctx, "b's"); err != nil {
		t.Fatal(err)
	}
	if a.write(ctx, "a's") == nil {
		s.lost++
	}
	_ = b.release(ctx)
}

// lateExtension: A's lease ends, B takes and releases the lock, and A extends its lease.
func lateExtension(t *testing.T, c *contender, round int, s *score) {
	t.Helper()
	ctx, resource := t.Context(), fmt.Sprint("late/", round, "/", time.Now().UnixNano())
	a := mustAcquire(t, c, resource)
	s.rounds++
	b := tryUntil(ctx, c.lock, resource, time.Now().Add(4*ttl))
	if b == nil {
		t.Fatalf("%s: the lock of a stopped holder never ends", c.name)
	}
	s.compare(a, b)
	if err := b.release(ctx); err != nil {
		t.Fatal(err)
	}
	if a.extend(ctx) == nil {
		s.stale++
		_ = a.release(ctx)
	}
}
