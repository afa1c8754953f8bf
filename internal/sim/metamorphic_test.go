package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"

	"github.com/fencelock/fencelock/internal/testenv"
)

// One history of requests has the same outcomes under any options: it is drawn once, and run
// over other numbers of nodes, sets and servers, other time limits, batches and in-flight
// limits, other pages and counters' lives. Its requests follow each other, but for those that
// wait, which come one after the other; nothing fails.
func TestOptionsChangeNoOutcome(t *testing.T) {
	testenv.Computes(t)
	optionsChangeNoOutcome(t, 0, 2)
}

func TestOptionsChangeNoOutcomeOfMoreHistories(t *testing.T) {
	testenv.Long(t, "an outcome that depends on an option in few histories")
	testenv.Computes(t)
	optionsChangeNoOutcome(t, 2, 6)
}

func optionsChangeNoOutcome(t *testing.T, from, to uint64) {
	t.Helper()
	for seed := from; seed < to; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			history := drawHistory(seed)
			usual := play(t, historyPlan(seed), history)
			if granted := strings.Count(strings.Join(usual, "\n"), "granted"); granted < len(history)/4 {
				t.Errorf("%d of %d steps are granted", granted, len(history))
			}
			for draw := range uint64(5) {
				plan := otherwise(historyPlan(seed), draw)
				if step, differs := firstOther(usual, play(t, plan, history)); differs != "" {
					t.Errorf("nodes %d, sets %d, servers %d, options %+v: step %d: %s", plan.Nodes, plan.Sets, plan.Servers, plan.Options, step, differs)
				}
			}
		})
	}
}

// It can fail: a node that forgets a part of large batches has other outcomes where votes come
// in batches, and the same where each comes alone.
func TestOptionsShowADefectOfBatches(t *testing.T) {
	notices := func(options Options) bool {
		for seed := range uint64(6) {
			history, plan := drawHistory(seed), historyPlan(seed)
			usual := play(t, plan, history)
			plan.Options = options
			plan.Mutant = Mutant{Name: "a node forgets releases in a batch", clumsy: true}
			if _, differs := firstOther(usual, play(t, plan, history)); differs != "" {
				return true
			}
		}
		return false
	}
	if notices(Options{}) {
		t.Error("there are other outcomes without batches")
	}
	if !notices(Options{Batch: 256, Gather: time.Millisecond}) {
		t.Error("no outcome shows a defect of batches")
	}
}

// step is one request of a history, or time that passes.
type step struct {
	verb     string
	resource int    // by number
	lease    int    // one that an earlier step got, counted back from the last
	key      string // of an acquire; it belongs to the resource
	server   int
}

func drawHistory(seed uint64) (steps []step) {
	const length, resources, keys = 60, 3, 2
	rng := rand.New(rand.NewPCG(seed, 0x5e9))
	for range length {
		s := step{
			verb:     pick(rng, "acquire", "acquire", "acquire", "several", "slot", "slot", "extend", "extend", "look", "release", "release", "release", "release", "break", "cancel", "queue", "pass"),
			resource: rng.IntN(resources), lease: rng.IntN(3), server: rng.IntN(60),
		}
		if rng.IntN(2) == 0 {
			s.key = fmt.Sprintf("key %d of %d", rng.IntN(keys), s.resource)
		}
		steps = append(steps, s)
	}
	return steps
}

const historyTTL = 30 * time.Second

func historyPlan(seed uint64) Plan {
	p := Plan{
		Seed: seed, Nodes: 3, Sets: 1, Servers: 1, Resources: 4, MaxTTL: historyTTL, CounterTTL: time.Hour, New: true, Perfect: true,
		Watch: 250 * time.Millisecond, Delay: time.Millisecond, NodeTimeout: time.Second, Slots: 2,
	}
	p.Rates = make([]float64, p.Nodes*p.Sets)
	return p
}

// otherwise is the plan with other options.
func otherwise(p Plan, draw uint64) Plan {
	rng := rand.New(rand.NewPCG(p.Seed, draw))
	p.Nodes, p.Sets, p.Servers = pick(rng, 1, 3, 5), 1+rng.IntN(3), 1+rng.IntN(3)
	p.Watch, p.NodeTimeout = pick(rng, 250*time.Millisecond, time.Second), pick(rng, 50*time.Millisecond, time.Second)
	p.Delay = pick(rng, 200*time.Microsecond, time.Millisecond, 4*time.Millisecond)
	p.Rates = make([]float64, p.Nodes*p.Sets)
	counterTTL := p.CounterTTL
	p.Seed += draw << 32
	p.DrawOptions()
	p.CounterTTL = min(p.CounterTTL, counterTTL)
	return p
}

// firstOther is the first step with another outcome; "" for none.
func firstOther(usual, other []string) (step int, differs string) {
	for i := range usual {
		if usual[i] != other[i] {
			return i, fmt.Sprintf("%s, and usually %s", other[i], usual[i])
		}
	}
	return 0, ""
}

// play runs the history and describes each step's outcome.
func play(t *testing.T, plan Plan, history []step) (outcomes []string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		h := &player{w: newWorld(plan, false), tokens: make(map[string][]fencing.Token)}
		defer h.w.end()
		for _, s := range h.w.servers {
			s.start()
		}
		h.w.runUntil(5 * time.Second)
		for _, s := range history {
			outcomes = append(outcomes, fmt.Sprintf("%s r%d: %s", s.verb, s.resource, h.do(s)))
		}
		if broken := h.w.invariants.broken; broken != nil && plan.Mutant.Name == "" {
			t.Errorf("invariants are broken: %v", broken)
		}
	})
	return outcomes
}

// player runs a history.
type player struct {
	w      *world
	leases []lockcore.Lease
	tokens map[string][]fencing.Token // that were granted, by resource
}

// asked is a call that has returned.
type asked struct {
	caller chan<- func()
	number int64
	take   func()
}

func (a asked) rank() rank { return rank{kind: kindOf("done"), n: a.number} }

func (a asked) accept(w *world) {
	w.callers = append(w.callers, a.caller)
	w.underWay--
	a.take()
}

// ask makes a call, which returned tells.
func (h *player) ask(server int, call func(context.Context, service) (lockcore.Lease, error), returned func(lockcore.Lease, error)) {
	s, caller, number := h.w.servers[server%len(h.w.servers)], h.w.caller(), int64(h.w.seq)
	h.w.underWay++
	caller <- func() {
		lease, err := call(s.ctx, s.locker)
		h.w.post(asked{caller, number, func() { returned(lease, err) }})
	}
}

// await makes a call and waits for its end.
func (h *player) await(server int, call func(context.Context, service) (lockcore.Lease, error)) (lease lockcore.Lease, err error) {
	done := false
	h.ask(server, call, func(l lockcore.Lease, e error) { lease, err, done = l, e, true })
	h.w.runWhile(func() bool { return !done })
	return lease, err
}

func name(resource int) string { return fmt.Sprintf("r%d", resource+1) }

func (s step) request() lockcore.Request {
	req := lockcore.Request{TTL: historyTTL, IdempotencyKey: s.key, Resource: name(s.resource)}
	switch s.verb {
	case "several":
		req.Resource, req.Resources, req.IdempotencyKey = "", []string{name(s.resource), name(s.resource + 1)}, ""
	case "slot":
		req.Slots, req.IdempotencyKey = 2, ""
	}
	return req
}

func (h *player) do(s step) string {
	switch s.verb {
	case "pass":
		h.w.runUntil(h.w.now() + historyTTL*3/2)
		return ""
	case "queue":
		return h.queue(s)
	case "acquire", "several", "slot":
		return h.told(h.await(s.server, func(ctx context.Context, l service) (lockcore.Lease, error) { return l.Acquire(ctx, s.request()) }))
	case "cancel":
		if s.key == "" {
			return ""
		}
		return h.told(h.await(s.server, func(ctx context.Context, l service) (lockcore.Lease, error) {
			_, err := l.Cancel(ctx, lockcore.Request{Resource: name(s.resource), IdempotencyKey: s.key})
			return lockcore.Lease{}, err
		}))
	}
	if s.lease >= len(h.leases) {
		return ""
	}
	lease := h.leases[len(h.leases)-1-s.lease]
	return h.told(h.await(s.server, func(ctx context.Context, l service) (lockcore.Lease, error) {
		switch s.verb {
		case "extend":
			return l.Extend(ctx, lease.ID, historyTTL)
		case "look":
			return l.Lease(ctx, lease.ID)
		case "break":
			part := partsOf(&lease)[0]
			return lockcore.Lease{}, l.Break(ctx, part.Resource, part.Token)
		}
		return lockcore.Lease{}, l.Release(ctx, lease.ID)
	}))
}

// queue has three requests wait for a resource that is held, each as polls where the options say
// so, and releases it: each is granted and released in its turn.
func (h *player) queue(s step) string {
	free := step{verb: "acquire", resource: 3, server: s.server} // no other step's
	first, err := h.await(s.server, func(ctx context.Context, l service) (lockcore.Lease, error) { return l.Acquire(ctx, free.request()) })
	if err != nil {
		return h.told(first, err)
	}
	const waiters = 3
	order, last := "", 0
	for i := range waiters {
		h.ask(s.server+i, func(ctx context.Context, l service) (lockcore.Lease, error) {
			req := free.request()
			req.Wait, req.Poll, req.IdempotencyKey = historyTTL/3, h.w.plan.Options.Poll, fmt.Sprintf("wait %d after %s", i, first.Token)
			lease, err := l.Acquire(ctx, req)
			for until := time.Now().Add(req.Wait); errors.Is(err, lockcore.ErrWaitTimeout) && time.Now().Before(until); {
				req.Wait = time.Until(until)
				lease, err = l.Acquire(ctx, req)
			}
			if err == nil {
				time.Sleep(100 * time.Millisecond)
				err = l.Release(ctx, lease.ID)
			}
			return lease, err
		}, func(lease lockcore.Lease, err error) {
			order, last = order+fmt.Sprintf("%d %s; ", i, h.told(lease, err)), last+1
		})
		h.w.runUntil(h.w.now() + 200*time.Millisecond)
	}
	_, err = h.await(s.server, func(ctx context.Context, l service) (lockcore.Lease, error) {
		return lockcore.Lease{}, l.Release(ctx, first.ID)
	})
	h.w.runWhile(func() bool { return last < waiters })
	return order + h.told(lockcore.Lease{}, err)
}

// told is an outcome in words that no option may change: the order of tokens, and neither their
// numbers nor which slot is free.
func (h *player) told(lease lockcore.Lease, err error) string {
	if err != nil {
		for _, known := range []error{
			lockcore.ErrHeld, lockcore.ErrOtherLease, lockcore.ErrNoQuorum, lockcore.ErrNotHeld, lockcore.ErrWaitTimeout, lockcore.ErrIdempotencyMismatch,
		} {
			if errors.Is(err, known) {
				return known.Error()
			}
		}
		return err.Error()
	}
	if lease.ID == "" {
		return "done"
	}
	text := "granted"
	for _, part := range partsOf(&lease) {
		resource, slot := lockcore.SlotOf(part.Resource)
		known := slices.Contains(h.tokens[part.Resource], part.Token)
		above := len(h.tokens[part.Resource]) == 0 || part.Token > slices.Max(h.tokens[part.Resource])
		if !known {
			h.tokens[part.Resource] = append(h.tokens[part.Resource], part.Token)
		}
		text += fmt.Sprintf(" %s (a slot: %t, known: %t, above all: %t)", resource, slot > 0, known, above)
	}
	if !slices.ContainsFunc(h.leases, func(l lockcore.Lease) bool { return l.ID == lease.ID }) {
		h.leases = append(h.leases, lease)
	}
	return text
}
