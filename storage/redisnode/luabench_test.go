package redisnode

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

// BenchmarkVoteScript measures what a batch costs a Redis server.
func BenchmarkVoteScript(b *testing.B) {
	server := testenv.StartRedis(b)
	n, err := Open(server.Addr(), Options{Timeout: 5 * time.Second})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	ctx := context.Background()
	n.Join(lockcore.Cluster{Nodes: 1, Hash: "x"})
	seen, err := n.Observe(ctx)
	if err != nil {
		b.Fatal(err)
	}
	a := lockcore.Admission{Incarnation: seen.Incarnation, View: 1, Founded: 1, Cluster: n.cluster, Floor: 1700000000000, MaxTTL: time.Minute}
	if err := n.Stage(ctx, a); err != nil {
		b.Fatal(err)
	}
	if err := n.Admit(ctx, a); err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1, 16, 128} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			var acquire, release []job
			sink := discard{}
			for i := range size {
				op := lockcore.Op{View: 1, Resource: fmt.Sprint("bench/", i), Lease: "abcdefghijklmnopqrstuvwxyz0", TTL: 30 * time.Second, Meta: "abcd1234\x1f\x1f"}
				op.Kind = lockcore.OpAcquire
				acquire = append(acquire, job{op: &op, sink: sink})
				free := op
				free.Kind, free.Hold = lockcore.OpRelease, "."
				release = append(release, job{op: &free, sink: sink})
			}
			batch := &batch{node: n}
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

type discard struct{}

func (discard) Deliver(int, lockcore.Reply) {}

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
