package stand

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/bench/internal/delay"
)

// Network forwards to servers on this machine with a delay, as if they were one round trip away.
type Network struct {
	*Program
	Addrs []string      // one for each server
	Trip  time.Duration // the measured median of a PING through it
}

const (
	pings = 300
	// closeEnough is the relative error of a round trip that is accepted without another
	// correction of the delay.
	closeEnough = 0.05
	corrections = 4
)

// StartNetwork starts a proxy to the servers, the first of which must be a Redis. It chooses the
// delay so that a PING takes trip, including the time that the machine and the proxy add.
func StartNetwork(ctx context.Context, s *Scope, trip time.Duration, servers []string) (*Network, error) {
	each := trip / 2
	for tries := 1; ; tries++ {
		n, err := startNetwork(ctx, s, each, servers)
		if err != nil {
			return nil, err
		}
		if n.Trip, err = ping(ctx, n.Addrs[0]); err != nil {
			return nil, err
		}
		off := n.Trip - trip
		if tries == corrections || off.Abs().Seconds() <= closeEnough*trip.Seconds() {
			return n, nil // on a busy machine it does not get closer
		}
		n.Stop()
		each = max(each-off/2, time.Microsecond)
	}
}

func startNetwork(ctx context.Context, s *Scope, each time.Duration, servers []string) (*Network, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := startProgram(s, path, nil, append([]string{delay.Command, each.String()}, servers...)...)
	if err != nil {
		return nil, err
	}
	n := &Network{Program: p}
	return n, p.await(ctx, func(context.Context) error {
		line, _, whole := strings.Cut(p.out.text(), "\n")
		if !whole {
			return errors.New("the proxy has not said yet where it listens")
		}
		var l delay.Listening
		err := json.Unmarshal([]byte(line), &l)
		n.Addrs = l.Addrs
		return err
	})
}

// ping returns the median time of a PING.
func ping(ctx context.Context, addr string) (time.Duration, error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = c.Close() }()
	took := make([]time.Duration, pings)
	for i := range took {
		begin := time.Now()
		if err := c.Ping(ctx).Err(); err != nil {
			return 0, err
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// URLs returns the addresses of the first servers as URLs of Redis nodes.
func (n *Network) URLs(nodes, database int) []string { return redisURLs(n.Addrs[:nodes], database) }

// loops is a shell that keeps a processor busy.
const loops = "while :; do :; done"

// Busy is a set of programs that only use processor time.
type Busy []*Program

// loopsEach is the number of such programs for each processor.
const loopsEach = 4

// StartBusy starts enough programs to take most of each processor's time.
func StartBusy(s *Scope) (b Busy, err error) {
	for range loopsEach * runtime.NumCPU() {
		p, err := startProgram(s, "/bin/sh", nil, "-c", loops)
		if err != nil {
			return b, err
		}
		b = append(b, p)
	}
	return b, nil
}

// CPU is the processor time of the programs.
func (b *Busy) CPU() (total time.Duration) {
	for _, p := range *b {
		total += p.CPU()
	}
	return total
}
