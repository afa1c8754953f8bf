package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/bench/internal/cpu"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/rawhttp"
	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/internal/scale"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
	"github.com/fencelock/fencelock/storage/redisnode"
)

var errNone = errors.New("nothing was counted")

func processors() int { return runtime.NumCPU() }

// sayf tells the reader what is being done.
func sayf(format string, args ...any) { _, _ = fmt.Fprintf(os.Stderr, format+"\n", args...) }

// others measures all costs but those of pairs.
func (s *stage) others(ctx context.Context) (c scale.Costs, err error) {
	c.Waiter = 45_000 // docs/how-to/operate.md: 10,000 waiters take less than 450 MB
	for _, part := range []struct {
		what string
		do   func(context.Context, *scale.Costs) error
	}{
		{"idle servers", s.idle}, {"leases", s.leases}, {"messages", s.messages},
	} {
		sayf("measure the costs of %s", part.what)
		if err := part.do(ctx, &c); err != nil {
			return c, fmt.Errorf("%s: %w", part.what, err)
		}
	}
	return c, nil
}

// pairs measures batches of many sizes: of one server, on sets of one node and of three.
func (s *stage) pairs(ctx context.Context, again int) (rounds []round, err error) {
	for _, nodes := range []int{1, perSet} {
		f, err := s.start(ctx, 1, 1, nodes, 0)
		if err != nil {
			return nil, err
		}
		for _, workers := range []int{1, 4, 16, 64, 256} {
			r, err := f.run(ctx, workers, measure, fmt.Sprintf("cost/%d", again))
			if err != nil {
				f.scope.Close()
				return nil, err
			}
			sayf("costs, round %d: %d nodes, %s", again+1, nodes, r)
			rounds = append(rounds, r)
		}
		f.scope.Close()
	}
	return rounds, nil
}

// standing is what a fleet takes while nobody uses it.
type standing struct{ server, node, redis, rss, conns float64 }

const idleFor = 4 * time.Second

func (s *stage) standing(ctx context.Context, servers, sets int) (st standing, err error) {
	f, err := s.start(ctx, servers, sets, perSet, 0)
	if err != nil {
		return st, err
	}
	defer f.scope.Close()
	pause(ctx, time.Second) // what a start leaves to do
	service, store := f.service(), f.store()
	pause(ctx, idleFor)
	nodes, count := float64(len(f.redis)), float64(servers)
	st.server = (f.service() - service).Seconds() / idleFor.Seconds() / count
	st.node = (f.store() - store).Seconds() / idleFor.Seconds() / nodes
	for _, r := range f.redis {
		info, err := r.Client().InfoMap(ctx, "memory", "clients").Result()
		if err != nil {
			return st, err
		}
		st.redis += number(info["Memory"]["used_memory"]) / nodes
		st.conns += number(info["Clients"]["connected_clients"]) / nodes
	}
	for _, server := range f.servers {
		rss, err := cpu.RSS(server.PID())
		if err != nil {
			return st, err
		}
		st.rss += float64(rss) / count
	}
	return st, nil
}

func number(text string) float64 {
	n, _ := strconv.ParseFloat(text, 64)
	return n
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// idle takes the differences between one server and four, and one set and four.
func (s *stage) idle(ctx context.Context, c *scale.Costs) error {
	one, err1 := s.standing(ctx, 1, 1)
	servers, err2 := s.standing(ctx, 4, 1)
	sets, err3 := s.standing(ctx, 1, maxSets)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	more := float64((maxSets - 1) * perSet)
	c.NodeWatch = max(0, servers.node-one.node) / 3
	c.ServerWatch = max(0, sets.server-one.server) / more
	c.NodeServer = max(0, servers.redis-one.redis) / 3
	c.NodeConns = max(0, servers.conns-one.conns) / 3
	c.ServerNode = max(0, sets.rss-one.rss) / more
	c.ServerBase = one.rss - perSet*c.ServerNode
	return nil
}

const held = 50_000

// leases takes many leases, and searches a node that has them.
func (s *stage) leases(ctx context.Context, c *scale.Costs) error {
	f, err := s.start(ctx, 1, 1, perSet, 0)
	if err != nil {
		return err
	}
	defer f.scope.Close()
	memory := func() (float64, float64) {
		var used float64
		for _, r := range f.redis {
			info, err := r.Client().InfoMap(ctx, "memory").Result()
			if err == nil {
				used += number(info["Memory"]["used_memory"]) / perSet
			}
		}
		rss, _ := cpu.RSS(f.servers[0].PID())
		return used, float64(rss)
	}
	node0, server0 := memory()
	crowd := &crowd{}
	if err := crowd.take(ctx, f.servers[0].Addr); err != nil {
		return err
	}
	node1, server1 := memory()
	if c.LeakPage, err = s.leakPage(ctx, f, len(crowd.held)); err != nil {
		return err
	}
	n := float64(len(crowd.held))
	if err := crowd.release(ctx, f.servers[0].Addr); err != nil {
		return err
	}
	node2, _ := memory()
	c.NodeLease, c.ServerLease, c.NodeCounter = (node1-node0)/n, max(0, server1-server0)/n, (node2-node0)/n
	return nil
}

// crowd is leases that one thread takes and releases.
type crowd struct {
	next int
	held []string
}

func (c *crowd) drive(ctx context.Context, addr string, next func(*rawhttp.Response, []byte) []byte) error {
	flows := make([]rawhttp.Flow, 64)
	for i := range flows {
		flows[i] = flowFunc(next)
	}
	return rawhttp.Drive(ctx, []string{addr}, flows)
}

func (c *crowd) take(ctx context.Context, addr string) error {
	err := c.drive(ctx, addr, func(resp *rawhttp.Response, buf []byte) []byte {
		if resp != nil && resp.Status == 201 {
			c.held = append(c.held, string(peer.AppendLeaseHeader(nil, resp.Body)))
		}
		if c.next == held {
			return buf
		}
		c.next++
		return rawhttp.AppendJSON(buf, "POST", "/locks", "", fmt.Appendf(nil, `{"resource":"held/%d","ttl_ms":300000}`, c.next))
	})
	if err == nil && len(c.held) < held*9/10 {
		err = fmt.Errorf("only %d of %d leases were granted", len(c.held), held)
	}
	return err
}

func (c *crowd) release(ctx context.Context, addr string) error {
	return c.drive(ctx, addr, func(_ *rawhttp.Response, buf []byte) []byte {
		if len(c.held) == 0 {
			return buf
		}
		lease := c.held[len(c.held)-1]
		c.held = c.held[:len(c.held)-1]
		return rawhttp.AppendRequest(buf, "DELETE", "/leases/current", lease)
	})
}

type flowFunc func(*rawhttp.Response, []byte) []byte

// Next calls it.
func (f flowFunc) Next(resp *rawhttp.Response, _ time.Time, buf []byte) ([]byte, error) {
	return f(resp, buf), nil
}

// searches counts searches for leaks.
type searches struct{ done atomic.Int64 }

// Batch does nothing.
func (*searches) Batch(int, time.Duration, bool) {}

// Memory does nothing.
func (*searches) Memory(int64, int64) {}

// Leaked counts.
func (s *searches) Leaked(int) { s.done.Add(1) }

// leakPage searches a node without pauses, and divides its time by the pages.
func (*stage) leakPage(ctx context.Context, f *fleet, leases int) (time.Duration, error) {
	var meter searches
	var nodes []node.Node
	var first *redisnode.Node
	scope := stand.NewScope("observers", os.Stderr)
	defer scope.Close()
	for _, r := range f.redis {
		n, err := redisnode.Open(r.URL(), redisnode.Options{Meters: func(string) redisnode.Meter { return &meter }})
		if err != nil {
			return 0, err
		}
		scope.Cleanup(func() { _ = n.Close() })
		if first == nil {
			first = n
		}
		nodes = append(nodes, n)
	}
	first.Join(membership.ClusterOf(nodes))
	searching, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	before := cpu.Process(f.pids[0])
	first.WatchLeaks(searching, redisnode.Leaks{Pause: 1, Rest: 1})
	used := cpu.Process(f.pids[0]) - before
	pages := float64(meter.done.Load()) * (2*float64(leases)/200 + 1)
	if pages == 0 {
		return 0, errNone
	}
	return seconds(used.Seconds() / pages), nil
}

// messages measures a node's time to publish and to deliver, and a server's to read.
func (s *stage) messages(ctx context.Context, c *scale.Costs) (err error) {
	r, pid := s.sets[0].Nodes[0], s.sets[0].PIDs[0]
	client := redis.NewClient(&redis.Options{Addr: r.Addr()})
	defer func() { err = errors.Join(err, client.Close()) }()
	const messages, subscribers = 3000, 50
	publish := func() (float64, error) {
		before := cpu.Process(pid)
		for range messages {
			if err := client.Publish(ctx, "capacity", word).Err(); err != nil {
				return 0, err
			}
		}
		pause(ctx, 100*time.Millisecond)
		return (cpu.Process(pid) - before).Seconds() / messages, nil
	}
	none, err := publish()
	if err != nil {
		return err
	}
	scope := stand.NewScope("subscribers", os.Stderr)
	defer scope.Close()
	for range subscribers {
		sub := client.Subscribe(ctx, "capacity")
		scope.Cleanup(func() { _ = sub.Close() })
		if _, err := sub.Receive(ctx); err != nil {
			return err
		}
		go func() {
			for range sub.Channel() { // until it is closed
			}
		}()
	}
	some, err := publish()
	c.Publish, c.Deliver = seconds(none), seconds(max(0, some-none)/subscribers)
	c.Decode = decode()
	return err
}

// word is an event as servers pass it on, nearly.
const word = `{"kind":"granted","at":"2026-03-01T12:00:00Z","server":"2f9k1c","resource":"orders/42","fencing_token":34,"holder":"worker-7","ttl_ms":30000}`

// decode is the time to read one event.
func decode() time.Duration {
	const times = 50_000
	before := cpu.Self()
	for range times {
		var e wire.Event
		if json.Unmarshal([]byte(word), &e) != nil {
			return 0
		}
	}
	return (cpu.Self() - before) / times
}
