package redisnode_test

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"context"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// BenchmarkPair measures acquire and release, in process, over five Redis.
func BenchmarkPair(b *testing.B) {
	servers := testenv.StartRedisN(b, 5)
	nodes := make([]node.Node, len(servers))
	for i, s := range servers {
		node, err := redisnode.Open(s.Addr(), redisnode.Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = node.Close() })
		nodes[i] = node
	}
	locker, err := sets.New(sets.Config{New: true}, nodes)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(b, 10*time.Second, func() error {
		if s := locker.Status(); s.Voting < 5 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	servicetest.BenchmarkPairs(b, locker, func(b *testing.B) func() {
		b.Helper()
		own, theirs, calls := ownCPU(b), serversCPU(b, servers), serversCalls(b, servers)
		return func() {
			b.ReportMetric(float64((ownCPU(b)-own).Microseconds())/float64(b.N), "client-µs/pair")
			b.ReportMetric(float64((serversCPU(b, servers)-theirs).Microseconds())/float64(b.N), "redis-µs/pair")
			b.ReportMetric(float64(2*len(servers)*b.N)/float64(serversCalls(b, servers)-calls), "ops/batch")
		}
	})
}

// ownCPU is the processor time that this process has used.
func ownCPU(b *testing.B) time.Duration {
	b.Helper()
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// serversCPU is the processor time that the servers have used together.
func serversCPU(b *testing.B, servers []*testenv.Redis) (total time.Duration) {
	b.Helper()
	for _, s := range servers {
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
	}
	return total
}

// serversCalls is how many scripts the servers have run together.
func serversCalls(b *testing.B, servers []*testenv.Redis) (total int64) {
	b.Helper()
	for _, s := range servers {
		total += calls(b, s, "evalsha")
	}
	return total
}

// calls returns how many times the server has run the command; 0 if it never has.
func calls(tb testing.TB, s *testenv.Redis, command string) int64 {
	tb.Helper()
	info, err := s.Client().Info(context.Background(), "commandstats").Result()
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, found := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	digits, _, _ := strings.Cut(rest, ",")
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		tb.Fatalf("calls of %s: %q", command, digits)
	}
	return n
}
