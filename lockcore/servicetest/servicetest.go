// Package servicetest is the suite that every lockcore.Service passes, independent of where it keeps its
// locks, in-process and over HTTP. Promises of only one kind of service are tested in that service's own
// tests.
package servicetest

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// MaxTTL is the longest TTL that the service under test allows. The service's default TTL differs from the
// suite's.
const (
	MaxTTL = 60 * time.Second
	ttl    = 20 * time.Second
)

// Callers are the callers that the suite acts for, by their names.
var Callers = []string{"alice", "bob"}

// Run runs the suite. open returns a service that is ready and empty. Run's calls are made for a caller of
// Callers, which may acquire every resource.
func Run(t *testing.T, open func(t *testing.T) lockcore.Service) {
	t.Helper()
	for name, test := range map[string]func(*fixture){
		"lease":       (*fixture).lease,
		"tokens":      (*fixture).tokens,
		"held":        (*fixture).held,
		"extend":      (*fixture).extend,
		"ended":       (*fixture).ended,
		"min hold":    (*fixture).minHold,
		"max hold":    (*fixture).maxHold,
		"expiry":      (*fixture).expiry,
		"callers":     (*fixture).callers,
		"idempotency": (*fixture).idempotency,
		"cancel":      (*fixture).cancel,
		"several":     (*fixture).several,
		"wait":        (*fixture).wait,
		"wait ends":   (*fixture).waitEnds,
		"list":        (*fixture).list,
		"break":       (*fixture).breaks,
		"break again": (*fixture).breaksAgain,
		"bounds":      (*fixture).bounds,
		"cancelled":   (*fixture).cancelled,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t)
			test(&fixture{T: t, ByID: ByID{s}, service: service{s}, ctx: WithCaller(t.Context(), Callers[0])})
		})
	}
}

// fixture is a service under test, and the context of the first caller.
type fixture struct {
	*testing.T
	ByID
	service
	ctx context.Context //nolint:containedctx // of the test
}

// service has the calls that ByID does not have.
type service struct{ lockcore.Service }

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// refused checks that a call returned the wanted error.
func (f *fixture) refused(what string, err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Errorf("%s: %v, want %v", what, err, want)
	}
}

func (f *fixture) check(what string, ok bool, got any) {
	f.Helper()
	if !ok {
		f.Errorf("%s: %+v", what, got)
	}
}

func (f *fixture) acquire(resource string) lockcore.Lease {
	f.Helper()
	lease, err := f.Acquire(f.ctx, lockcore.Request{Resource: resource, TTL: ttl})
	f.must(err)
	return lease
}

func (f *fixture) state(resource string) lockcore.LockState {
	f.Helper()
	state, err := f.Inspect(f.ctx, resource)
	f.must(err)
	return state
}

// eventually returns when done does; the test's own time limit ends it.
func (f *fixture) eventually(done func() bool) {
	f.Helper()
	const pause = 5 * time.Millisecond
	for tick := time.NewTicker(pause); !done(); <-tick.C {
		f.must(f.ctx.Err())
	}
}

func (f *fixture) lease() {
	f.check("ready", f.Status().Ready, f.Status())
	f.check("free", !f.state("a/b").Held, f.state("a/b"))
	lease, err := f.Acquire(f.ctx, lockcore.Request{Resource: "a/b", TTL: ttl, Holder: "worker ü", Metadata: json.RawMessage(`{"job":[1]}`)})
	f.must(err)
	whole := func(what string, l lockcore.Lease) {
		f.check(what, l.Resource == "a/b" && l.ID == lease.ID && l.Token == lease.Token && l.TTL == ttl && l.Holder == "worker ü" &&
			string(l.Metadata) == `{"job":[1]}` && l.Validity > 0 && l.Validity < ttl && !l.Existing && l.Parts == nil, l)
	}
	whole("granted", lease)
	now, err := f.Lease(f.ctx, lease.ID)
	f.must(err)
	whole("looked up", now)

	state := f.state("a/b")
	f.check("state", state.Held && state.Token == lease.Token && state.Holder == "worker ü" && string(state.Metadata) == `{"job":[1]}` &&
		state.TTL == ttl && state.Remaining > 0 && state.Remaining <= ttl && state.Waiting == 0, state)
	opened, err := f.Open(f.ctx, lease.ID)
	f.must(err)
	terms := opened.Terms()
	f.check("lease id", opened.ID() == lease.ID && slices.Equal(terms.Parts, []lockcore.LeasePart{{Resource: "a/b", Token: lease.Token}}), terms)
	f.must(f.Release(f.ctx, lease.ID))
	f.check("released", !f.state("a/b").Held, f.state("a/b"))
}

// minHold: after a release the resource stays locked, by no lease.
func (f *fixture) minHold() {
	ask := lockcore.Request{Resource: "r", TTL: ttl, MinHold: ttl / 2, Holder: "job"}
	lease, err := f.Acquire(f.ctx, ask)
	f.must(err)
	f.must(f.Release(f.ctx, lease.ID))
	state := f.state("r")
	f.check("taken", state.Held && state.Holder == "job" && state.Remaining <= ttl/2 && state.Remaining > ttl/4, state)
	_, err = f.Acquire(f.ctx, lockcore.Request{Resource: "r", TTL: ttl})
	f.refused("acquire", err, lockcore.ErrHeld)
	_, err = f.Extend(f.ctx, lease.ID, ttl)
	f.refused("extend", err, lockcore.ErrNotHeld)
	f.refused("release", f.Release(f.ctx, lease.ID), lockcore.ErrNotHeld)
	f.must(f.Break(f.ctx, "r", lease.Token)) // the remaining lock has the token of its lease
	next := f.acquire("r")
	f.check("token", next.Token > lease.Token, next)
	_, err = f.Acquire(f.ctx, lockcore.Request{Resource: "s", TTL: ttl, MinHold: ttl + time.Second})
	f.refusedField("min_hold_ms", err)
}

// maxHold ends extensions.
func (f *fixture) maxHold() {
	lease, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r", TTL: ttl, MaxHold: ttl})
	f.must(err)
	f.check("remaining", lease.MaxHoldRemaining >= 0 && lease.MaxHoldRemaining <= ttl, lease)
	extended, err := f.Extend(f.ctx, lease.ID, ttl)
	f.check("extended to the end of the hold", err == nil && extended.TTL <= ttl && extended.MaxHoldRemaining <= ttl, extended)
	_, err = f.Acquire(f.ctx, lockcore.Request{Resource: "s", TTL: ttl, MaxHold: ttl - time.Second})
	f.refusedField("max_hold_ms", err)
}

func (f *fixture) refusedField(field string, err error) {
	f.Helper()
	if e, ok := errors.AsType[*lockcore.FieldError](err); !ok || e.Field != field {
		f.Errorf("%v, want %s refused", err, field)
	}
}

// tokens: they grow with every grant, however the previous lease ended.
func (f *fixture) tokens() {
	last := f.acquire("r")
	for _, end := range []func() error{
		func() error { return f.Release(f.ctx, last.ID) },
		func() error { return f.Break(f.ctx, "r", 0) },
		func() error { return f.Break(f.ctx, "r", last.Token) },
		func() error { return f.Release(f.ctx, last.ID) },
	} {
		f.must(end())
		next := f.acquire("r")
		f.check("larger than the token before", next.Token > last.Token && next.ID != last.ID, next)
		last = next
	}
}

func (f *fixture) held() {
	lease, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r", TTL: ttl, Holder: "h"})
	f.must(err)
	_, err = f.Acquire(f.ctx, lockcore.Request{Resource: "r", Holder: "other"})
	f.refused("held", err, lockcore.ErrHeld)
	refusal, ok := errors.AsType[*lockcore.HeldError](err)
	if !ok {
		f.Fatalf("%T", err)
	}
	f.check("the lease in the way", refusal.Resource == "r" && refusal.Holder == "h" && refusal.Token == lease.Token &&
		refusal.Remaining > 0 && refusal.Remaining <= ttl, refusal)
	f.acquire("R") // another resource
}

func (f *fixture) extend() {
	lease := f.acquire("r")
	for _, given := range []time.Duration{40 * time.Second, MaxTTL} {
		longer, err := f.Extend(f.ctx, lease.ID, given)
		f.must(err)
		f.check("extended", longer.ID == lease.ID && longer.Token == lease.Token && longer.TTL == given && longer.Validity > given-5*time.Second, longer)
		again, err := f.Extend(f.ctx, lease.ID, 0)
		f.must(err)
		f.check("extended by its own TTL", again.TTL == given && again.Token == lease.Token, again)
	}
}

// ended: a released lease, a broken one, and texts that are not lease ids.
func (f *fixture) ended() {
	released, broken, other := f.acquire("r"), f.acquire("s"), f.acquire("t")
	f.must(f.Release(f.ctx, released.ID))
	f.must(f.Break(f.ctx, "s", broken.Token))
	next := f.acquire("r")
	for _, id := range []string{released.ID, broken.ID, "nonsense", other.ID[:len(other.ID)-1], other.ID + "A"} {
		_, err := f.Extend(f.ctx, id, ttl)
		f.refused("extend", err, lockcore.ErrNotHeld)
		_, err = f.Lease(f.ctx, id)
		f.refused("look up", err, lockcore.ErrNotHeld)
		f.refused("release", f.Release(f.ctx, id), lockcore.ErrNotHeld)
	}
	for _, lease := range []lockcore.Lease{next, other} {
		_, err := f.Lease(f.ctx, lease.ID)
		f.must(err)
	}
}

// expiry: a lease that is not extended ends, and a request that waits gets the resource.
func (f *fixture) expiry() {
	lease, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r", TTL: 3 * time.Second}) // a node has a tenth of it to reply
	f.must(err)
	next, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r", TTL: ttl, Wait: time.Minute})
	f.must(err)
	f.check("the next token", next.Token > lease.Token, next)
	_, err = f.Extend(f.ctx, lease.ID, ttl)
	f.refused("extend", err, lockcore.ErrNotHeld)
	end, err := f.EndOf(f.ctx, lease.ID)
	f.check("the end", err == nil && end != lockcore.EndNone, end)
	end, err = f.EndOf(f.ctx, next.ID)
	f.check("no end", err == nil && end == lockcore.EndNone, end)
}

// callers: a lease belongs to its caller.
func (f *fixture) callers() {
	lease := f.acquire("r")
	other := WithCaller(f.Context(), Callers[1])
	_, err := f.Extend(other, lease.ID, ttl)
	f.refused("extend", err, lockcore.ErrNotHeld)
	_, err = f.Lease(other, lease.ID)
	f.refused("look up", err, lockcore.ErrNotHeld)
	f.refused("release", f.Release(other, lease.ID), lockcore.ErrNotHeld)
	_, err = f.Open(other, lease.ID)
	f.refused("open", err, lockcore.ErrNotHeld)
	_, err = f.Lease(f.ctx, lease.ID)
	f.must(err)
}

func (f *fixture) idempotency() {
	req := lockcore.Request{Resource: "r", TTL: ttl, IdempotencyKey: "key"}
	first, err := f.Acquire(f.ctx, req)
	f.must(err)
	again, err := f.Acquire(f.ctx, req)
	f.must(err)
	f.check("the same lease", again.Existing && again.ID == first.ID && again.Token == first.Token, again)
	_, err = f.Acquire(WithCaller(f.Context(), Callers[1]), req)
	f.refused("another caller's", err, lockcore.ErrHeld)
	_, err = f.Acquire(f.ctx, lockcore.Request{Resource: "s", IdempotencyKey: "key"})
	f.refused("another resource", err, lockcore.ErrIdempotencyMismatch)
	other := req
	other.Holder = "another"
	_, err = f.Acquire(f.ctx, other)
	f.refused("another holder", err, lockcore.ErrIdempotencyMismatch)
	f.must(f.Release(f.ctx, first.ID))
	next, err := f.Acquire(f.ctx, req)
	f.must(err)
	f.check("after a release", !next.Existing && next.Token > first.Token, next)
}

// cancel: nothing remains of a request that is given up.
func (f *fixture) cancel() {
	requests := []lockcore.Request{
		{Resource: "r", MinHold: ttl}, {Resource: "r", Slots: 2}, {Resources: []string{"p", "q"}},
	}
	for _, req := range requests {
		req.TTL, req.IdempotencyKey = ttl, "key"
		_, err := f.Cancel(f.ctx, req)
		f.must(err) // no request with this key came before
		lease, err := f.Acquire(f.ctx, req)
		f.must(err)
		_, err = f.Cancel(WithCaller(f.Context(), Callers[1]), req)
		f.must(err) // a cancel under another caller's key ends nothing
		found, err := f.Find(f.ctx, req)
		f.must(err)
		f.check("found", found.ID == lease.ID && found.Existing, found)
		for range 2 {
			_, err = f.Cancel(f.ctx, req)
			f.must(err)
		}
		f.refused("released", f.Release(f.ctx, lease.ID), lockcore.ErrNotHeld)
		_, err = f.Find(f.ctx, req)
		f.refused("found", err, lockcore.ErrNotHeld)
		next, err := f.Acquire(f.ctx, lockcore.Request{Resource: req.Resource, Resources: req.Resources, Slots: req.Slots, TTL: ttl})
		f.must(err)
		f.must(f.Release(f.ctx, next.ID))
	}
	_, err := f.Cancel(f.ctx, lockcore.Request{Resource: "r"})
	f.refusedField("Idempotency-Key", err)
	_, err = f.Find(f.ctx, lockcore.Request{Resource: "r"})
	f.refusedField("Idempotency-Key", err)
}

// several: all or none.
func (f *fixture) several() {
	taken := f.acquire("b")
	_, err := f.Acquire(f.ctx, lockcore.Request{Resources: []string{"c", "b", "a"}})
	refusal, ok := errors.AsType[*lockcore.HeldError](err)
	f.check("the one in the way", ok && refusal.Resource == "b", err)
	f.eventually(func() bool { return !f.state("a").Held && !f.state("c").Held })
	f.must(f.Release(f.ctx, taken.ID))

	all, err := f.Acquire(f.ctx, lockcore.Request{Resources: []string{"c", "b", "a"}, TTL: ttl, Wait: time.Minute})
	f.must(err)
	if len(all.Parts) != 3 || all.Resource != "" || all.Token != 0 {
		f.Fatalf("%+v", all)
	}
	for i, part := range all.Parts {
		state := f.state(part.Resource)
		f.check("a part", part.Resource == []string{"a", "b", "c"}[i] && state.Held && state.Token == part.Token, part)
	}
	longer, err := f.Extend(f.ctx, all.ID, 0)
	f.must(err)
	f.check("extended", longer.ID == all.ID && len(longer.Parts) == 3 && longer.TTL == ttl, longer)
	f.must(f.Release(f.ctx, all.ID))
	for _, part := range all.Parts {
		f.check("released", !f.state(part.Resource).Held, part)
	}
}

// wait: first come, first served; the queue is shown.
func (f *fixture) wait() {
	lease := f.acquire("r")
	f.check("not waited", lease.Waited < time.Second, lease.Waited)
	granted := make(chan lockcore.Lease, 2)
	var waiting sync.WaitGroup
	for i, holder := range []string{"first", "second"} {
		waiting.Go(func() {
			next, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r", TTL: ttl, Wait: time.Minute, Holder: holder})
			if err != nil {
				f.Error(err)
				return
			}
			granted <- next
			if err := f.Release(f.ctx, next.ID); err != nil {
				f.Error(err)
			}
		})
		f.eventually(func() bool { return f.state("r").Waiting == i+1 })
	}
	queue := f.state("r").Waiters
	f.check("the queue", len(queue) == 2 && queue[0].Holder == "first" && queue[1].Holder == "second", queue)
	_, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r"})
	f.refused("overtakes the queue", err, lockcore.ErrHeld)
	const queued = 20 * time.Millisecond
	began := time.Now()
	f.eventually(func() bool { return time.Since(began) > queued })
	f.must(f.Release(f.ctx, lease.ID))
	waiting.Wait()
	close(granted)
	for _, holder := range []string{"first", "second"} {
		next := <-granted
		f.check(holder, next.Holder == holder && next.Waited >= queued && next.Validity < ttl, next)
	}
}

// waitEnds: at its time limit, or with its context. Then the queue is empty.
func (f *fixture) waitEnds() {
	lease := f.acquire("r")
	const short = 100 * time.Millisecond
	_, err := f.Acquire(f.ctx, lockcore.Request{Resource: "r", Wait: short})
	f.refused("the time limit", err, lockcore.ErrWaitTimeout)
	timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err)
	f.check("the lease in the way", ok && timeout.Token == lease.Token && timeout.Position == 1 && timeout.Waited >= short && !timeout.Kept, err)
	_, err = f.Acquire(f.ctx, lockcore.Request{Resource: "r", Wait: time.Minute, Poll: time.Second, IdempotencyKey: "polls"})
	timeout, ok = errors.AsType[*lockcore.WaitTimeoutError](err)
	f.check("a poll keeps its place", ok && timeout.Kept && timeout.Position == 1, err)
	if _, err := f.Cancel(f.ctx, lockcore.Request{Resource: "r", IdempotencyKey: "polls"}); err != nil {
		f.Error(err)
	}

	ctx, cancel := context.WithCancel(f.ctx)
	var waiting sync.WaitGroup
	waiting.Go(func() {
		_, err := f.Acquire(ctx, lockcore.Request{Resource: "r", Wait: time.Minute})
		f.refused("its context", err, context.Canceled)
	})
	f.eventually(func() bool { return f.state("r").Waiting == 1 })
	cancel()
	waiting.Wait()
	f.eventually(func() bool { return f.state("r").Waiting == 0 })
}

func (f *fixture) list() {
	const n = 5
	for i := range n {
		f.acquire("x/" + strconv.Itoa(i))
	}
	f.acquire("y")
	all := f.listed(lockcore.ListRequest{Caller: callerOf(f.ctx), Prefix: "x/", Limit: 2})
	f.check("all under the prefix, once", len(all) == n && all["x/3"] == 1, all)
	shown := f.listed(lockcore.ListRequest{Caller: callerOf(f.ctx), Prefix: "x/", Limit: 2, Show: func(resource string) bool { return resource != "x/3" }})
	f.check("all that may be shown, once", len(shown) == n-1 && shown["x/3"] == 0 && shown["x/0"] == 1, shown)
}

// listed counts the locks of all pages.
func (f *fixture) listed(req lockcore.ListRequest) map[string]int {
	f.Helper()
	seen := make(map[string]int)
	for more := true; more; more = req.Cursor != "" {
		page, err := f.List(f.ctx, req)
		f.must(err)
		for _, lock := range page.Locks {
			f.check("a lock", lock.Held && lock.Token > 0 && lock.TTL == ttl && lock.Remaining > 0, lock)
			seen[lock.Resource]++
		}
		req.Cursor = page.NextCursor
	}
	return seen
}

func (f *fixture) breaks() {
	for _, token := range []fencing.Token{0, 1} {
		f.refused("free", f.Break(f.ctx, "r", token), lockcore.ErrNotHeld)
	}
	f.acquire("r")
	f.must(f.Break(f.ctx, "r", 0))
	f.check("broken", !f.state("r").Held, f.state("r"))
	f.refused("again", f.Break(f.ctx, "r", 0), lockcore.ErrNotHeld)
}

// breaksAgain: a repeated break of a token ends only the lease with that token. It tests a plain lease, one
// under an idempotency key, a slot, and a part of several.
func (f *fixture) breaksAgain() {
	for name, req := range map[string]lockcore.Request{
		"single":         {Resource: "single"},
		"keyed":          {Resource: "keyed", IdempotencyKey: "one"},
		"slot":           {Resource: "slot", Slots: 1},
		"keyed slot":     {Resource: "keyed slot", Slots: 1, IdempotencyKey: "two"},
		"several":        {Resources: []string{"several", "several too"}},
		"several, keyed": {Resources: []string{"keyed several", "keyed several too"}, IdempotencyKey: "three"},
	} {
		req.TTL = ttl
		broken, err := f.Acquire(f.ctx, req)
		f.must(err)
		part := lockcore.LeasePart{Resource: broken.Resource, Token: broken.Token}
		if broken.Parts != nil {
			part = broken.Parts[0]
		}
		f.refusedBreak(name+", before", part.Resource, part.Token+1, part.Token)
		f.must(f.Break(f.ctx, part.Resource, part.Token))
		f.refused(name+", again", f.Break(f.ctx, part.Resource, part.Token), lockcore.ErrNotHeld)
		_, err = f.Extend(f.ctx, broken.ID, ttl)
		f.refused(name+", extend", err, lockcore.ErrNotHeld)
		if broken.Parts != nil {
			_ = f.Release(f.ctx, broken.ID) // the other part
			f.eventually(func() bool { return !f.state(broken.Parts[1].Resource).Held })
		}

		next, err := f.Acquire(f.ctx, req)
		f.must(err)
		successor := f.state(part.Resource)
		f.check(name+": the next lease", next.ID != broken.ID && successor.Held && successor.Token > part.Token, successor)
		f.refusedBreak(name+", after", part.Resource, part.Token, successor.Token)
		_, err = f.Extend(f.ctx, next.ID, ttl)
		f.must(err)
	}
}

// refusedBreak checks that a break is refused because another lease, with the token holds, holds the resource.
func (f *fixture) refusedBreak(what, resource string, token, holds fencing.Token) {
	f.Helper()
	err := f.Break(f.ctx, resource, token)
	other, ok := errors.AsType[*lockcore.OtherLeaseError](err)
	f.check(what, ok && other.Resource == resource && other.Token == holds && other.Remaining > 0 && other.Remaining <= ttl, err)
}

// bounds: a request out of bounds is refused with its field, and nothing is granted.
func (f *fixture) bounds() {
	long := strings.Repeat("x", lockcore.MaxResourceBytes+1)
	for field, req := range map[string]lockcore.Request{
		"resource":  {Resource: long},
		"ttl_ms":    {Resource: "r", TTL: MaxTTL + time.Millisecond},
		"wait_ms":   {Resource: "r", Wait: lockcore.MaxWait + time.Millisecond},
		"holder":    {Resource: "r", Holder: "a\nb"},
		"metadata":  {Resource: "r", Metadata: json.RawMessage(`"` + strings.Repeat("x", lockcore.MaxMetadataBytes) + `"`)},
		"resources": {Resources: []string{"r", "r"}},
	} {
		_, err := f.Acquire(f.ctx, req)
		f.refusedField(field, err)
	}
	f.check("nothing granted", !f.state("r").Held, nil)
	lease := f.acquire("r")
	_, err := f.Extend(f.ctx, lease.ID, MaxTTL+time.Millisecond)
	f.refusedField("ttl_ms", err)
	_, err = f.Inspect(f.ctx, "a\x00")
	f.refusedField("resource", err)
	f.refusedField("resource", f.Break(f.ctx, long, 1))
	_, err = f.List(f.ctx, lockcore.ListRequest{Caller: callerOf(f.ctx), Prefix: long, Limit: 1})
	f.refusedField("prefix", err)
}

// cancelled: under an ended context nothing is granted.
func (f *fixture) cancelled() {
	ended, cancel := context.WithCancel(f.ctx)
	cancel()
	_, err := f.Acquire(ended, lockcore.Request{Resource: "r"})
	f.refused("acquire", err, context.Canceled)
	f.eventually(func() bool { return !f.state("r").Held })
}
