package redisnode_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// TestMain silences the Redis library's own logger, which logs every connection that fails.
func TestMain(m *testing.M) {
	redisnode.LogLibrary(slog.New(slog.DiscardHandler))
	testenv.Main(m)
}

func contextFor(t *testing.T, d time.Duration) (context.Context, context.CancelFunc) {
	t.Helper()
	return context.WithTimeout(t.Context(), d)
}

var cluster = node.Cluster{Nodes: 3, Hash: "c0ffee"} //nolint:gochecknoglobals // a constant in all but name

func observe(t *testing.T, node *redisnode.Node) node.Observation {
	t.Helper()
	seen, err := node.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func TestObserveNamesProgramAndRole(t *testing.T) {
	t.Parallel()
	seen := observe(t, openNode(t, testenv.StartRedis(t).Addr(), redisnode.Options{}))
	program, version, _ := strings.Cut(seen.Version, " ")
	if program != "Redis" && program != "Valkey" || !strings.Contains(version, ".") || seen.Role != "master" {
		t.Errorf("version %q, role %q", seen.Version, seen.Role)
	}
}

// admitted makes the node a voting one.
func admitted(t *testing.T, redis *redisnode.Node) node.Epoch {
	t.Helper()
	redis.Join(cluster)
	seen := observe(t, redis)
	epoch := max(seen.Epoch, seen.Staged) + 10
	a := node.Admission{
		Incarnation: seen.Incarnation, Epoch: epoch, Bootstrapped: epoch, Cluster: cluster, Floor: 1000, MaxTTL: time.Minute,
	}
	if seen.Admitted {
		a.Note = node.MissedNote(seen.Epoch)
	}
	if err := errors.Join(redis.Stage(t.Context(), a), redis.Admit(t.Context(), a)); err != nil {
		t.Fatal(err)
	}
	return epoch
}

func acquire(epoch node.Epoch, resource string) node.Op {
	return node.Op{Kind: node.OpAcquire, Epoch: epoch, Resource: resource, Owner: "L1", TTL: time.Minute}
}

func ask(t *testing.T, node *redisnode.Node, op node.Op) node.Reply {
	t.Helper()
	r, err := nodetest.Submit(node, op)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantOutcome(t *testing.T, r node.Reply, want node.Outcome) {
	t.Helper()
	if r.Outcome != want {
		t.Errorf("%+v, want outcome %d", r, want)
	}
}

// After a demotion and a promotion a node does not vote, although its process, scripts, connections and replicated
// record are all still there.
func TestPromotionAndDemotionShutTheGate(t *testing.T) {
	t.Parallel()
	master := testenv.StartRedis(t)
	redis := openNode(t, master.Addr(), redisnode.Options{})
	epoch := admitted(t, redis)
	wantOutcome(t, ask(t, redis, acquire(epoch, "a")), node.Granted)

	replica := testenv.StartRedis(t, testenv.WithReplicaOf(master))
	twin := openNode(t, replica.Addr(), redisnode.Options{})
	twin.Join(cluster)
	if seen := observe(t, twin); seen.Admitted || !strings.Contains(seen.Unfit, "replica of") || !strings.Contains(seen.Unfit, "REPLICAOF NO ONE") {
		t.Errorf("a replica: %+v", seen)
	}
	wantOutcome(t, ask(t, twin, acquire(epoch, "b")), node.NotAdmitted)
	a := node.Admission{Incarnation: observe(t, twin).Incarnation, Epoch: epoch + 10, Bootstrapped: epoch + 10, Cluster: cluster}
	if err := twin.Stage(t.Context(), a); !errors.Is(err, node.ErrRaced) {
		t.Errorf("a replica was staged: %v", err)
	}

	// The master is admitted with its replica attached: the record and the
	// replication id are the same on both, and only the role tells them apart.
	epoch = admitted(t, redis)
	testenv.Eventually(t, 10*time.Second, func() error {
		if seen := observe(t, twin); seen.Epoch != epoch || seen.Incarnation != observe(t, redis).Incarnation {
			return fmt.Errorf("the replica is not in step: %+v", seen)
		}
		return nil
	})
	if seen := observe(t, twin); seen.Admitted {
		t.Errorf("a replica: %+v", seen)
	}
	wantOutcome(t, ask(t, twin, acquire(epoch, "b")), node.NotAdmitted)
	wantOutcome(t, ask(t, twin, node.Op{Kind: node.OpRead, Resource: "b"}), node.NotAdmitted)
	if _, err := twin.Counters(t.Context(), epoch, []string{"b"}); !errors.Is(err, node.ErrNotAdmitted) {
		t.Errorf("a replica was read for a rejoin: %v", err)
	}

	replica.Promote()
	if seen := observe(t, twin); seen.Admitted || seen.Unfit != "" || seen.Epoch != epoch {
		t.Errorf("a promoted replica: %+v", seen)
	}
	wantOutcome(t, ask(t, twin, acquire(epoch, "b")), node.NotAdmitted)

	epoch = admitted(t, redis) // attaching a replica changed its replication id
	before := observe(t, redis)
	master.ReplicaOf(replica)
	wantOutcome(t, ask(t, redis, acquire(epoch, "c")), node.NotAdmitted)
	master.Promote()
	if seen := observe(t, redis); seen.Admitted || seen.Incarnation == before.Incarnation {
		t.Errorf("demoted and promoted: %+v, was %+v", seen, before)
	}
	wantOutcome(t, ask(t, redis, acquire(epoch, "c")), node.NotAdmitted)
}

func TestUnfitNodes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts  []testenv.RedisOption
		wants []string
	}{
		"cluster mode": {[]testenv.RedisOption{testenv.WithConfig("cluster-enabled yes")}, []string{"cluster mode", "cluster-enabled no"}},
		"evicting":     {[]testenv.RedisOption{testenv.WithConfig("maxmemory-policy allkeys-lru")}, []string{"allkeys-lru", "noeviction"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.StartRedis(t, c.opts...)
			seen := observe(t, openNode(t, server.Addr(), redisnode.Options{}))
			for _, want := range c.wants {
				if !strings.Contains(seen.Unfit, want) {
					t.Errorf("%q does not say %q", seen.Unfit, want)
				}
			}
		})
	}
}

// A database that is not ours is refused, and nothing in it is touched.
func TestForeignDatabase(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	client := server.Client()
	for name, key := range map[string]string{"a key": "their key", "a key of our name": "fencelock", "a key like ours": "l:a"} {
		t.Run(name, func(t *testing.T) {
			server.FlushAll()
			if err := client.Set(t.Context(), key, "theirs", 0).Err(); err != nil {
				t.Fatal(err)
			}
			redis := openNode(t, server.Addr(), redisnode.Options{})
			redis.Join(cluster)
			seen := observe(t, redis)
			if seen.Empty || seen.Admitted || !strings.Contains(seen.Unfit, "its own database") {
				t.Errorf("%+v", seen)
			}
			a := node.Admission{Incarnation: seen.Incarnation, Epoch: 5, Bootstrapped: 5, Cluster: cluster, Floor: 1000}
			if err := redis.Stage(t.Context(), a); !errors.Is(err, node.ErrForeign) {
				t.Errorf("staged: %v", err)
			}
			a.OnlyIfEmpty = true
			if err := redis.Stage(t.Context(), a); !errors.Is(err, node.ErrRaced) {
				t.Errorf("staged: %v", err)
			}
			for _, op := range []node.Op{
				acquire(5, "a"), {Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: "s1"}, TTL: time.Minute},
				{Kind: node.OpEnqueue, Epoch: 5, Resource: "a", Ticket: node.Ticket{ID: "t", Server: "s1", Arrival: 1}},
				{Kind: node.OpRead, Resource: "a"},
			} {
				if r := ask(t, redis, op); r.Outcome != node.NotAdmitted && r.Outcome != node.Failed {
					t.Errorf("operation %d: %+v", op.Kind, r)
				}
			}
			if got, err := client.Get(t.Context(), key).Result(); err != nil || got != "theirs" {
				t.Errorf("their key is %q, %v", got, err)
			}
			if n := client.DBSize(t.Context()).Val(); n != 1 {
				t.Errorf("%d keys", n)
			}
		})
	}
}

func TestDatabaseNumberIsKept(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	client := server.Client()
	if err := client.Set(t.Context(), "their key", "theirs", 0).Err(); err != nil {
		t.Fatal(err)
	}
	redis := openNode(t, "redis://"+server.Addr()+"/3", redisnode.Options{})
	if want := server.Addr() + "/3"; redis.Name() != want {
		t.Errorf("name %q, want %q", redis.Name(), want)
	}
	wantOutcome(t, ask(t, redis, acquire(admitted(t, redis), "a")), node.Granted)
	if n := client.DBSize(t.Context()).Val(); n != 1 {
		t.Errorf("%d keys in database 0", n)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	const password = "s3cret/with:odd@signs%"
	for name, opts := range map[string][]testenv.RedisOption{
		"password": {testenv.WithPassword(password)},
		"user":     {testenv.WithUser("locks", password)},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.StartRedis(t, opts...)
			redis := openNode(t, server.URL(), redisnode.Options{})
			if want := server.Addr() + "/0"; redis.Name() != want {
				t.Errorf("name %q, want %q", redis.Name(), want)
			}
			wantOutcome(t, ask(t, redis, acquire(admitted(t, redis), "a")), node.Granted)

			wrong := openNode(t, strings.Replace(server.URL(), "s3cret", "wrong", 1), redisnode.Options{})
			_, err := wrong.Observe(t.Context())
			if err == nil || strings.Contains(err.Error(), "odd") {
				t.Errorf("with a wrong password: %v", err)
			}
			if r := ask(t, wrong, acquire(1, "a")); r.Outcome != node.Failed || strings.Contains(r.Err.Error(), "odd") {
				t.Errorf("with a wrong password: %+v", r)
			}
			bare := openNode(t, server.Addr(), redisnode.Options{})
			if _, err := bare.Observe(t.Context()); err == nil {
				t.Error("without a password")
			}
		})
	}
}

// documentedACL reads the rules from the package's comment.
func documentedACL(t *testing.T) (rules []string) {
	t.Helper()
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(source)) {
		if rest, ok := strings.CutPrefix(line, "//\t"); ok {
			rules = append(rules, strings.Fields(rest)...)
		}
	}
	if len(rules) < 10 {
		t.Fatalf("rules %q", rules)
	}
	return rules
}

const tlsURL = "FENCELOCK_TEST_TLS_NODE"

// A Go program gets the authority of a private certificate by SSL_CERT_FILE, which a process reads only once. So the
// test starts another process.
func TestTLS(t *testing.T) {
	t.Parallel()
	if url := os.Getenv(tlsURL); url != "" {
		redis := openNode(t, url, redisnode.Options{})
		wantOutcome(t, ask(t, redis, acquire(admitted(t, redis), "a")), node.Granted)
		return
	}
	server := testenv.StartRedis(t, testenv.WithTLS(), testenv.WithPassword("s3cret"))
	untrusting := openNode(t, server.URL(), redisnode.Options{})
	if _, err := untrusting.Observe(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a certificate of an unknown authority: %v", err)
	}
	plain := openNode(t, strings.Replace(server.URL(), "rediss://", "redis://", 1), redisnode.Options{})
	if _, err := plain.Observe(t.Context()); err == nil {
		t.Error("a TLS node was talked to in clear text")
	}
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTLS$", "-test.count=1")
	child.Env = append(os.Environ(), tlsURL+"="+server.URL(), "SSL_CERT_FILE="+server.CAFile())
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
}

// With TLS, Redis asks its clients for certificates by default.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t, testenv.WithTLS(), testenv.WithPassword("s3cret"))
	if err := server.Client().ConfigSet(t.Context(), "tls-auth-clients", "yes").Err(); err != nil {
		t.Fatal(err)
	}
	ca := "?ca=" + url.QueryEscape(server.CAFile())
	without := openNode(t, server.URL()+ca, redisnode.Options{})
	if _, err := without.Observe(t.Context()); err == nil {
		t.Error("it is let in without a certificate")
	}
	pair := "&cert=" + url.QueryEscape(server.CAFile()) + "&key=" + url.QueryEscape(server.KeyFile())
	with := openNode(t, server.URL()+ca+pair, redisnode.Options{})
	wantOutcome(t, ask(t, with, acquire(admitted(t, with), "a")), node.Granted)
	if strings.Contains(with.Name(), "?") {
		t.Errorf("its name is %s", with.Name())
	}
	for addr, why := range map[string]string{
		server.URL() + "?ca=/none":                                 "/none",
		server.URL() + "?cert=" + server.CAFile():                  "go together",
		server.URL() + "?ca=" + server.KeyFile():                   "must be a certificate",
		strings.Replace(server.URL(), "rediss:", "redis:", 1) + ca: "are for rediss://",
		server.URL() + "?unknown=1":                                "want redis:// or rediss://",
	} {
		if _, err := redisnode.ParseAddr(addr); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %q", addr, err, why)
		}
	}
}

func TestAddresses(t *testing.T) {
	for addr, name := range map[string]string{
		"127.0.0.1:7000":                                "127.0.0.1:7000/0",
		"[::1]:6379":                                    "[::1]:6379/0",
		"redis://127.0.0.1:7000":                        "127.0.0.1:7000/0",
		"redis://127.0.0.1":                             "127.0.0.1:6379/0",
		"redis://:pw@127.0.0.1:7000/2":                  "127.0.0.1:7000/2",
		"rediss://user:pw@127.0.0.1:7000/15":            "127.0.0.1:7000/15",
		"redis://user:p%2Fw%40@127.0.0.1:7000/1":        "127.0.0.1:7000/1",
		"redis://127.0.0.1:7000/1?max_retries=5":        "127.0.0.1:7000/1",
		"redis://127.0.0.1:7000?db=4&read_timeout=100s": "127.0.0.1:7000/4",
	} {
		node, err := redisnode.Open(addr, redisnode.Options{})
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if node.Name() != name {
			t.Errorf("%s: name %q, want %q", addr, node.Name(), name)
		}
		_ = node.Close()
	}
}

func TestAddressesThatAreRefused(t *testing.T) {
	for _, addr := range []string{
		"", "h", ":6379", "h:", "h:0", "h:65536", "h:x", "h:-1", "h:6379/2", "http://127.0.0.1:6379", "redis://127.0.0.1:6379/x", "redis://127.0.0.1:6379/-1",
		"redis://127.0.0.1:6379/1/2", "redis://127.0.0.1:99999", "user:s3cret@127.0.0.1:6379", "s3cret@127.0.0.1:6379", "s3cret@127.0.0.1:99999", "h s3cret@127.0.0.1:1",
		"redis://user:s3cret/more@127.0.0.1:6379", "redis://user:s3cret%zz@127.0.0.1:6379", "redis://user:s3cret@127.0.0.1:port", "redis://user:s3cret@127.0.0.1:6379/x",
		"redis://user:s3cret?more@127.0.0.1:6379/0", "redis://user:s3cret#more@127.0.0.1:6379", "https://user:s3cret@127.0.0.1:6379", "redis://:s3cret@more@127.0.0.1:6379/x", "unix:///tmp/redis.sock",
	} {
		opts, err := redisnode.ParseAddr(addr)
		if err == nil {
			t.Errorf("%q was taken, as %s", addr, opts.Addr)
			continue
		}
		if text := err.Error(); strings.Contains(text, "s3cr") || strings.Contains(text, "%zz") || strings.Contains(text, "more") {
			t.Errorf("%q: the error repeats the password: %v", addr, err)
		}
	}
}

// A frozen node costs its time limit twice. After that, operations for it fail at once without being sent, until it
// replies again.
func TestFrozenNodeFailsFast(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	const limit = 100 * time.Millisecond
	redis := openNode(t, server.Addr(), redisnode.Options{Timeout: limit})
	epoch := admitted(t, redis)
	testenv.Eventually(t, 10*time.Second, func() error { // a busy machine may be slower than the limit
		if r := ask(t, redis, acquire(epoch, "a")); r.Outcome != node.Granted {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
	server.Freeze()
	sent := 0
	testenv.Eventually(t, 10*time.Second, func() error {
		began := time.Now()
		r := ask(t, redis, acquire(epoch, "b"))
		if r.Outcome != node.Failed {
			t.Fatalf("%+v", r)
		}
		if r.Sent {
			sent++
		}
		if took := time.Since(began); took > limit/4 || !errors.Is(r.Err, node.ErrNodeDown) {
			return fmt.Errorf("failed after %s: %w", took, r.Err)
		}
		return nil
	})
	if sent > 3 {
		t.Errorf("%d operations were sent to a frozen redis", sent)
	}
	for range 100 {
		began := time.Now()
		if r := ask(t, redis, acquire(epoch, "c")); r.Sent || !errors.Is(r.Err, node.ErrNodeDown) {
			t.Fatalf("%+v", r)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("failed after %s", took)
		}
	}
	server.Thaw()
	testenv.Eventually(t, 10*time.Second, func() error {
		if r := ask(t, redis, acquire(epoch, "d")); r.Outcome != node.Granted {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

func TestNodeThatIsNotThere(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	redis := openNode(t, server.Addr(), redisnode.Options{})
	epoch := admitted(t, redis)
	server.Kill()
	testenv.Eventually(t, 10*time.Second, func() error {
		r := ask(t, redis, acquire(epoch, "a"))
		if r.Outcome != node.Failed {
			t.Fatalf("%+v", r)
		}
		if r.Sent {
			return fmt.Errorf("may have been sent: %w", r.Err)
		}
		return nil
	})
	if _, err := redis.Observe(t.Context()); err == nil || err.Error() != "no server listens at its address: connection refused" {
		t.Errorf("%v", err)
	}
	server.Restart()
	testenv.Eventually(t, 10*time.Second, func() error {
		if r := ask(t, redis, acquire(epoch, "a")); r.Outcome != node.NotAdmitted {
			return fmt.Errorf("%+v", r)
		}
		return nil
	})
}

// If a reply is lost, the operation may have taken effect, and its error says so.
func TestLostReply(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	proxy := testenv.StartProxy(t, server.Addr())
	redis := openNode(t, proxy.Addr(), redisnode.Options{Timeout: 2 * time.Second})
	epoch := admitted(t, redis)
	wantOutcome(t, ask(t, redis, acquire(epoch, "a")), node.Granted)
	proxy.DropReplies(true)
	if r := ask(t, redis, acquire(epoch, "b")); r.Outcome != node.Failed || !r.Sent {
		t.Errorf("%+v", r)
	}
	proxy.DropReplies(false)
	proxy.Reset()
	testenv.Eventually(t, 10*time.Second, func() error {
		if r := ask(t, redis, acquire(epoch, "b")); r.Outcome != node.Granted || !r.Existing {
			return fmt.Errorf("%+v", r) // it had taken effect, once
		}
		return nil
	})
}

type replyChan chan node.Reply

func (c replyChan) Deliver(_ int, r node.Reply) { c <- r }

func (c replyChan) next(t *testing.T) node.Reply {
	t.Helper()
	select {
	case r := <-c:
		return r
	case <-time.After(10 * time.Second):
		t.Fatal("an operation without a reply")
		return node.Reply{}
	}
}

// stuck makes a node whose sender is busy: its server is frozen.
func stuck(t *testing.T, opts redisnode.Options) (*redisnode.Node, replyChan) {
	t.Helper()
	server := testenv.StartRedis(t)
	opts.Timeout = cmp.Or(opts.Timeout, time.Second/2)
	node := openNode(t, server.Addr(), opts)
	epoch := admitted(t, node)
	server.Freeze()
	t.Cleanup(server.Thaw) // before the node is closed, which waits for its answer
	replies := make(replyChan, 100_000)
	op := acquire(epoch, "first")
	node.Submit(&op, 0, replies)
	return node, replies
}

func TestFullQueueFailsAtOnce(t *testing.T) {
	t.Parallel()
	const queue, more, limit = 10, 50, time.Minute
	redis, replies := stuck(t, redisnode.Options{Queue: queue, Batch: 1, Timeout: limit})
	began := time.Now()
	op := acquire(1, "a")
	for range queue + more {
		redis.Submit(&op, 0, replies)
	}
	for range more - 1 { // the sender may have taken one more
		if r := replies.next(t); !errors.Is(r.Err, node.ErrQueueFull) || r.Sent {
			t.Fatalf("%+v", r)
		}
	}
	if took := time.Since(began); took > limit/4 {
		t.Errorf("a full queue took %s to say so, of the %s that an answer may take", took, limit)
	}
}

func TestCloseAnswersWhatWaits(t *testing.T) {
	t.Parallel()
	redis, replies := stuck(t, redisnode.Options{})
	const waiting = 20
	op := acquire(1, "a")
	for range waiting {
		redis.Submit(&op, 0, replies)
	}
	if err := redis.Close(); err != nil {
		t.Error(err)
	}
	for range waiting + 1 {
		wantOutcome(t, replies.next(t), node.Failed)
	}
	redis.Submit(&op, 0, replies)
	if r := replies.next(t); !errors.Is(r.Err, node.ErrNodeDown) || r.Sent {
		t.Errorf("after Close: %+v", r)
	}
	if len(replies) > 0 {
		t.Errorf("%d replies too many", len(replies))
	}
	if _, err := redis.Observe(t.Context()); err == nil {
		t.Error("a closed redis answers")
	}
}

// Every operation gets exactly one reply, whenever the node is closed.
func TestCloseWhileSubmitting(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	for range 10 {
		node := openNode(t, server.Addr(), redisnode.Options{Queue: 16})
		node.Join(cluster)
		replies := make(replyChan, 100_000)
		var sent atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 500 {
					op := acquire(1, "a")
					node.Submit(&op, 0, replies)
					sent.Add(1)
				}
			})
		}
		wg.Go(func() { _ = node.Close() })
		wg.Wait()
		for range sent.Load() {
			replies.next(t)
		}
		if len(replies) > 0 {
			t.Fatalf("%d replies too many", len(replies))
		}
	}
}

// FLUSHALL removes the node's record. SCRIPT FLUSH removes nothing that matters.
func TestScriptFlushChangesNothing(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	redis := openNode(t, server.Addr(), redisnode.Options{})
	epoch := admitted(t, redis)
	wantOutcome(t, ask(t, redis, acquire(epoch, "a")), node.Granted)
	if err := server.Client().ScriptFlush(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if r := ask(t, redis, acquire(epoch, "a")); r.Outcome != node.Granted || !r.Existing {
		t.Errorf("%+v", r)
	}
}
