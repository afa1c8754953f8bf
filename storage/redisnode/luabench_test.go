package redisnode

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
)

// BenchmarkVoteScript measures the cost of a batch for a Redis server.
func BenchmarkVoteScript(b *testing.B) {
	server := testenv.StartRedis(b)
	n, err := Open(server.Addr(), Options{Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	ctx := context.Background()
	cluster := node.Cluster{Nodes: 1, Hash: "x"}
	n.Join(cluster)
	seen, err := n.Observe(ctx)
	if err != nil {
		b.Fatal(err)
	}
	a := node.Admission{Incarnation: seen.Incarnation, Epoch: 1, Bootstrapped: 1, Cluster: cluster, Floor: 1700000000000, MaxTTL: time.Minute}
	if err := n.Stage(ctx, a); err != nil {
		b.Fatal(err)
	}
	if err := n.Admit(ctx, a); err != nil {
		b.Fatal(err)
	}
	kinds := []struct {
		name string
		add  func(*node.Op)
	}{
		{"plain", func(*node.Op) {}},
		{"keyed", func(op *node.Op) { op.Attempt, op.Scope = "abcdefgh", op.Resource }},
		{"queued", func(op *node.Op) {
			op.Attempt, op.Scope = "abcdefgh", op.Resource
			op.Ticket = node.Ticket{ID: "t" + op.Owner, Server: "server", Arrival: 1_790_000_000_000_000, Keyed: true}
		}},
	}
	for i := range 3 * len(kinds) {
		kind, size := kinds[i%len(kinds)], []int{1, 16, 128}[i/len(kinds)]
		b.Run(fmt.Sprintf("%s/batch=%d", kind.name, size), func(b *testing.B) {
			var acquire, release []job
			sink := discard{}
			for i := range size {
				op := node.Op{Epoch: 1, Resource: fmt.Sprint("bench/", i), Owner: fmt.Sprintf("abcdefghijklmnopqrstuvw%04d", i), TTL: 30 * time.Second, Meta: "abcd1234\x1f\x1f"}
				kind.add(&op)
				op.Kind = node.OpAcquire
				free := op
				free.Kind = node.OpRelease
				acquire = append(acquire, job{op: &op, sink: granted{&free}})
				release = append(release, job{op: &free, sink: sink})
			}
			batch := &batch{node: n}
			defer batch.disconnect()
			before := cpu(b, server)
			for b.Loop() {
				for _, jobs := range [][]job{acquire, release} {
					batch.jobs = append(batch.jobs[:0], jobs...)
					if err := batch.run(); err != nil {
						b.Fatal(err)
					}
				}
			}
			b.ReportMetric(float64((cpu(b, server)-before).Nanoseconds())/float64(b.N*size*2), "redis-ns/op")
		})
	}
}

// granted puts the grant into the release that follows.
type granted struct{ release *node.Op }

func (g granted) Deliver(_ int, reply node.Reply) { g.release.Token = reply.Grant }

type discard struct{}

func (discard) Deliver(int, node.Reply) {}

func cpu(b *testing.B, s *testenv.Redis) (total time.Duration) {
	b.Helper()
	info, err := s.Client().InfoMap(context.Background(), "cpu").Result()
	if err != nil {
		b.Fatal(err)
	}
	for _, key := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info["CPU"][key], 64)
		if err != nil {
			b.Fatal(err)
		}
		total += time.Duration(seconds * float64(time.Second))
	}
	return total
}

// BenchmarkMarshal writes a batch of acquires and releases as vote.lua reads it.
func BenchmarkMarshal(b *testing.B) {
	const size = 64
	batch := &batch{node: &Node{}}
	jobs := make([]job, size)
	for i := range jobs {
		op := &node.Op{Kind: node.OpAcquire, Epoch: 1, Resource: fmt.Sprint("bench/", i), Owner: "abcdefghijklmnopqrstuvwxyz0", TTL: 30 * time.Second, Meta: "abcd1234\x1f\x1f"}
		if i%2 == 1 {
			op.Kind, op.Token = node.OpRelease, 1_790_000_000_000_000
		}
		jobs[i] = job{op: op, sink: discard{}}
	}
	b.ReportAllocs()
	for b.Loop() {
		if now, rest := batch.cut(jobs); len(now) != size || len(rest) != 0 {
			b.Fatal(len(now), len(rest))
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/op-in-batch")
}

// BenchmarkParse reads the answer to such a batch.
func BenchmarkParse(b *testing.B) {
	const size = 64
	var p packer
	p.reset()
	for range size {
		p.n++
		p.buf = binary.BigEndian.AppendUint64(append(p.buf, packUint64), 1790000000000000) // as Redis writes it
	}
	answer, op := string(p.bytes()), &node.Op{Kind: node.OpAcquire, TTL: 30 * time.Second}
	b.ReportAllocs()
	for b.Loop() {
		replies := unpacker{rest: answer}
		for range replies.array() {
			if r := parseAnswer(&replies, op); r.Err != nil || r.Grant != 1_790_000_000_000_000 {
				b.Fatal(r)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/op-in-batch")
}
