package suite

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/bench/internal/cpu"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/rawhttp"
	"github.com/fencelock/fencelock/bench/internal/result"
)

const (
	// heldTTL is longer than the scenario.
	heldTTL = 5 * time.Minute
	// heldWorkers is the number of workers that take and release the held leases.
	heldWorkers = 64
	mega        = 1 << 20
)

// held measures what many leases cost while they are held and nothing happens to them.
func (s *Suite) held() []step {
	store := &leases{want: s.size.held, keys: rand.Text()}
	var steps []step
	measure := func(variant string, rounds []int) {
		for _, round := range rounds {
			k := result.Key{Scenario: result.Held, Variant: variant, Peer: result.HTTP}
			steps = append(steps, s.measure(s.onMain, k, round, s.job(result.Held, usual, round)))
		}
	}
	perLease := 120 * time.Microsecond
	measure("none held", []int{0, 1})
	steps = append(steps, step{label: fmt.Sprintf("take %d leases", s.size.held), cost: time.Duration(s.size.held) * perLease,
		do: func(ctx context.Context) error { return s.take(ctx, store) }})
	measure("held", []int{0, 1, 2, 3})
	steps = append(steps, step{label: "give them back", cost: time.Duration(s.size.held) * perLease,
		do: func(ctx context.Context) error { return store.release(ctx, s.main.server.Addr) }})
	measure("none held", []int{2, 3})
	return steps
}

// take takes the leases and records what they cost.
func (s *Suite) take(ctx context.Context, store *leases) error {
	before, err := s.memory(ctx)
	if err != nil {
		return err
	}
	if err := store.acquire(ctx, s.main.server.Addr); err != nil {
		return err
	}
	after, err := s.memory(ctx)
	if err != nil {
		return err
	}
	n := float64(len(store.held))
	s.set.Set("held leases", n)
	s.set.Set("held redis bytes", (after.redis-before.redis)/n)
	s.set.Set("held server bytes", max(0, after.server-before.server)/n)
	return nil
}

// footprint is memory in bytes: of one Redis node (the mean), and of the server.
type footprint struct{ redis, server float64 }

func (s *Suite) memory(ctx context.Context) (footprint, error) {
	used, err := s.main.redis.Memory(ctx)
	if err != nil {
		return footprint{}, err
	}
	rss, err := cpu.RSS(s.main.server.PID())
	if err != nil {
		return footprint{}, err
	}
	f := footprint{server: float64(rss)}
	for _, bytes := range used {
		f.redis += float64(bytes) / float64(len(used))
	}
	return f, nil
}

// leases takes many leases, keeps them, and releases them. One thread drives all connections, so
// no field needs a mutex.
type leases struct {
	want   int
	next   int
	failed int
	keys   string
	held   []string // header lines with the lease ids
}

func (l *leases) acquire(ctx context.Context, addr string) error {
	return rawhttp.Drive(ctx, []string{addr}, l.flows(func(resp *rawhttp.Response, buf []byte) ([]byte, error) {
		if err := l.note(resp); err != nil {
			return nil, err
		}
		if l.next == l.want {
			return buf, nil
		}
		l.next++
		body := fmt.Appendf(nil, `{"resource":"held/%d","ttl_ms":%d}`, l.next, heldTTL.Milliseconds())
		return rawhttp.AppendJSON(buf, http.MethodPost, "/locks", peer.KeyHeader(l.keys, l.next), body), nil
	}))
}

// note keeps a grant. A few refusals are ignored, because they happen on a busy machine.
func (l *leases) note(resp *rawhttp.Response) error {
	switch {
	case resp == nil:
	case resp.Status == http.StatusCreated:
		l.held = append(l.held, string(peer.AppendLeaseHeader(nil, resp.Body)))
	default:
		l.failed++
		if l.failed > l.want/10 {
			return fmt.Errorf("acquire, %d times: %d %.200s", l.failed, resp.Status, resp.Body)
		}
	}
	return nil
}

func (l *leases) release(ctx context.Context, addr string) error {
	if len(l.held) == 0 {
		return errNoRound
	}
	return rawhttp.Drive(ctx, []string{addr}, l.flows(func(_ *rawhttp.Response, buf []byte) ([]byte, error) {
		if len(l.held) == 0 {
			return buf, nil
		}
		lease := l.held[len(l.held)-1]
		l.held = l.held[:len(l.held)-1]
		return rawhttp.AppendRequest(buf, http.MethodDelete, "/leases/current", lease), nil
	}))
}

func (*leases) flows(next flowFunc) []rawhttp.Flow {
	flows := make([]rawhttp.Flow, heldWorkers)
	for i := range flows {
		flows[i] = next
	}
	return flows
}

// flowFunc is a flow without state.
type flowFunc func(resp *rawhttp.Response, buf []byte) ([]byte, error)

// Next calls it.
func (f flowFunc) Next(resp *rawhttp.Response, _ time.Time, buf []byte) ([]byte, error) {
	return f(resp, buf)
}

// parked measures what many waiters in the queue cost while nothing happens.
func (s *Suite) parked() []step {
	if s.size.parked == 0 {
		return nil
	}
	return []step{{
		label: fmt.Sprintf("%d parked waiters", s.size.parked),
		cost:  parkedTidied + s.size.parkedIdle + time.Duration(s.size.parked)*time.Millisecond,
		do:    s.park,
	}}
}

// parkedLines is the number of resources over which the waiters are spread.
const parkedLines = 100

func (s *Suite) park(ctx context.Context) (err error) {
	before, err := s.memory(ctx)
	if err != nil {
		return err
	}
	var conns []*rawhttp.Conn
	defer func() {
		for _, c := range conns {
			err = errors.Join(err, c.Close())
		}
		s.main.settle(ctx)
	}()
	for i := range parkedLines + s.size.parked {
		c, err := s.line(ctx, i)
		if err != nil {
			return err
		}
		conns = append(conns, c)
	}
	return s.watchParked(ctx, before)
}

// line acquires one of the resources, or waits in its queue.
func (s *Suite) line(ctx context.Context, i int) (*rawhttp.Conn, error) {
	c, err := rawhttp.Dial(ctx, s.main.server.Addr)
	if err != nil {
		return nil, err
	}
	wait := ""
	if i >= parkedLines {
		wait = `,"wait_ms":300000`
	}
	body := fmt.Appendf(nil, `{"resource":"parked/%d","ttl_ms":%d%s}`, i%parkedLines, heldTTL.Milliseconds(), wait)
	request := rawhttp.AppendJSON(nil, http.MethodPost, "/locks", "", body)
	if i >= parkedLines {
		err = c.Send(request)
		return c, err
	}
	resp, err := c.Do(ctx, request)
	if err == nil && resp.Status != http.StatusCreated {
		err = fmt.Errorf("acquire: %d %.200s", resp.Status, resp.Body)
	}
	return c, err
}

// watchParked waits until all waiters are in their queues, and then measures for a while what
// they cost.
func (s *Suite) watchParked(ctx context.Context, before footprint) error {
	if err := s.awaitParked(ctx); err != nil {
		return err
	}
	s.main.settle(ctx)
	if err := pass(ctx, parkedTidied); err != nil {
		return err
	}
	pid, begun := s.main.server.PID(), time.Now()
	used := cpu.Process(pid)
	if err := pass(ctx, s.size.parkedIdle); err != nil {
		return err
	}
	used = cpu.Process(pid) - used
	after, err := s.memory(ctx)
	if err != nil {
		return err
	}
	s.set.Set("parked waiters", float64(s.size.parked))
	s.set.Set("parked server MB", after.server/mega)
	s.set.Set("parked bytes each", max(0, after.server-before.server)/float64(s.size.parked))
	s.set.Set("parked server core", used.Seconds()/time.Since(begun).Seconds())
	return nil
}

// parkedTidied is how long the server is given to finish the work of so many arrivals, which does
// not belong to the cost of waiting.
const parkedTidied = 5 * time.Second

// pass waits for d.
func pass(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// awaitParked waits until each queue has all its waiters.
func (s *Suite) awaitParked(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for i := range parkedLines {
		want := s.size.parked / parkedLines
		for {
			waiting, err := peer.Waiting(ctx, s.main.server.Addr, "parked/"+strconv.Itoa(i))
			if err != nil {
				return fmt.Errorf("%d of %d in line: %w", waiting, want, err)
			}
			if waiting >= want {
				break
			}
			time.Sleep(settleStep)
		}
	}
	return nil
}

// soakParts is how many times a soak measures memory.
const soakParts = 10

// soak keeps up the load for a long time, to see that memory does not grow.
func (s *Suite) soak() []step {
	if s.opts.Soak <= 0 {
		return nil
	}
	var seen []footprint
	var steps []step
	for part := range soakParts {
		job := s.job("soak", usual, part)
		job.Measure = s.opts.Soak / soakParts
		st := s.measure(s.onMain, result.Key{Scenario: "soak", Variant: strconv.Itoa(usual), Peer: result.HTTP}, part, job)
		do := st.do
		st.do = func(ctx context.Context) error {
			if err := do(ctx); err != nil {
				return err
			}
			f, err := s.memory(ctx)
			seen = append(seen, f)
			if len(seen) > 1 {
				s.set.Set("soak server growth", f.server/seen[0].server)
				s.set.Set("soak redis growth", f.redis/seen[0].redis)
			}
			return err
		}
		steps = append(steps, st)
	}
	return steps
}
