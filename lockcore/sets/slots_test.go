package sets_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
)

// slotsOf is a request for one of n slots of "jobs".
func slotsOf(n int) lockcore.Request {
	return lockcore.Request{Resource: "jobs", Slots: n, TTL: time.Minute}
}

// underKey returns the request with an idempotency key.
func underKey(key string, req lockcore.Request) lockcore.Request {
	req.IdempotencyKey = key
	return req
}

func (a *arena) release(l *locker, leases ...lockcore.Lease) {
	a.Helper()
	for _, lease := range leases {
		if err := l.Release(a.Context(), lease.ID); err != nil {
			a.Fatal(err)
		}
	}
}

func inArena(t *testing.T, nodes, servers int, test func(*arena)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, stop := newArena(t, nodes, servers)
		defer func() { stop(); time.Sleep(time.Minute) }()
		test(a)
	})
}

// As many requests as there are slots get one slot each, with a name and a token of its own.
func TestSlots(t *testing.T) {
	inArena(t, 5, 2, func(a *arena) {
		var leases []lockcore.Lease
		var names []string
		for i := range 3 {
			lease := a.must(a.servers[i%2], slotsOf(3))
			leases, names = append(leases, lease), append(names, lease.Resource)
		}
		slices.Sort(names)
		if !slices.Equal(names, lockcore.SlotNames("jobs", 3)) {
			a.Fatalf("slots %q", names)
		}
		if _, err := a.servers[0].Acquire(a.Context(), slotsOf(3)); !errors.Is(err, lockcore.ErrHeld) {
			a.Fatalf("a fourth one: %v", err)
		}
		a.release(a.servers[1], leases[1]) // through any server
		again := a.must(a.servers[0], slotsOf(3))
		if again.Resource != leases[1].Resource || again.Token <= leases[1].Token {
			a.Errorf("%s under token %d after %s under %d", again.Resource, again.Token, leases[1].Resource, leases[1].Token)
		}
		if _, err := a.servers[1].Extend(a.Context(), again.ID, 0); err != nil {
			a.Error(err)
		}
	})
}

// Whichever slots become free, the waiting requests get them in the order of arrival, over all servers, even if
// several become free at once.
func TestSlotsAreFirstComeFirstServed(t *testing.T) {
	inArena(t, 3, 2, func(a *arena) {
		var held []lockcore.Lease
		for range 3 {
			held = append(held, a.must(a.servers[0], slotsOf(3)))
		}
		type grant struct {
			place int
			slot  string
		}
		granted := make(chan grant, 6)
		for i := range 6 {
			req := slotsOf(3)
			req.Wait = 5 * time.Minute
			if i%2 == 0 {
				req.IdempotencyKey = strconv.Itoa(i)
			}
			go func() { granted <- grant{i, a.must(a.servers[i%2], req).Resource} }()
			time.Sleep(100 * time.Millisecond)
		}
		a.release(a.servers[0], held[1])
		if got := <-granted; got != (grant{0, held[1].Resource}) {
			a.Errorf("%+v got %s", got, held[1].Resource)
		}
		time.Sleep(time.Second)
		a.release(a.servers[1], held[2], held[0])
		if got := []int{(<-granted).place, (<-granted).place}; !slices.Contains(got, 1) || !slices.Contains(got, 2) {
			a.Errorf("the next two slots went to %d", got)
		}
		for i := 3; i < 6; i++ { // when leases expire
			if got := <-granted; got.place != i {
				a.Errorf("%d got a slot in place of %d", got.place, i)
			}
		}
	})
}

// A request that gets a slot leaves the queues of the other slots at once, also under a key.
func TestSlotsLeaveTheOtherQueues(t *testing.T) {
	inArena(t, 3, 1, func(a *arena) {
		one, two := a.must(a.servers[0], slotsOf(2)), a.must(a.servers[0], slotsOf(2))
		granted := make(chan lockcore.Lease)
		go func() {
			req := underKey("key", slotsOf(2))
			req.Wait = time.Minute
			granted <- a.must(a.servers[0], req)
		}()
		time.Sleep(time.Second)
		a.release(a.servers[0], one)
		<-granted
		a.release(a.servers[0], two)
		time.Sleep(50 * time.Millisecond)
		a.must(a.servers[0], slotsOf(2))
	})
}

// A retry under a key finds the slot that the key has, whichever other slots are free meanwhile. If it got a second
// slot, one slot too many would be taken from the other callers (rule 29).
func TestKeyFindsItsSlot(t *testing.T) {
	inArena(t, 5, 3, func(a *arena) {
		var others []lockcore.Lease
		for range 4 {
			others = append(others, a.must(a.servers[0], slotsOf(5)))
		}
		own := a.must(a.servers[0], underKey("key", slotsOf(5)))
		a.release(a.servers[0], others...)
		for i := range 3 {
			again := a.must(a.servers[i], underKey("key", slotsOf(5)))
			if !again.Existing || again.Resource != own.Resource || again.Token != own.Token {
				a.Errorf("the key got %s under token %d, and has %s under %d", again.Resource, again.Token, own.Resource, own.Token)
			}
		}
		a.release(a.servers[0], own)
		a.release(a.servers[0], a.must(a.servers[1], underKey("key", slotsOf(5))))
		if _, err := a.servers[0].Acquire(a.Context(), underKey("key", lockcore.Request{Resource: "other"})); err != nil {
			a.Errorf("the key after its release: %v", err)
		}
		if _, err := a.servers[0].Acquire(a.Context(), underKey("key", slotsOf(5))); !errors.Is(err, lockcore.ErrIdempotencyMismatch) {
			a.Errorf("the key of another resource: %v", err)
		}
	})
}

// A request that comes again without a wait gives up its places in the queues of all slots.
func TestSlotsPlacesAreGivenUp(t *testing.T) {
	inArena(t, 3, 1, func(a *arena) {
		one, two := a.must(a.servers[0], slotsOf(2)), a.must(a.servers[0], slotsOf(2))
		req := underKey("key", slotsOf(2))
		req.Wait, req.Poll = time.Minute, time.Second
		if _, err := a.servers[0].Acquire(a.Context(), req); !errors.Is(err, lockcore.ErrWaitTimeout) {
			a.Fatal(err)
		}
		req.Wait, req.Poll = 0, 0
		if _, err := a.servers[0].Acquire(a.Context(), req); !errors.Is(err, lockcore.ErrHeld) {
			a.Fatal(err)
		}
		a.release(a.servers[0], one, two)
		time.Sleep(50 * time.Millisecond)
		a.must(a.servers[0], slotsOf(2))
		a.must(a.servers[0], slotsOf(2))
	})
}

// Requests that come under one key at the same time, through several servers, get one slot.
func TestKeyGetsOneSlot(t *testing.T) {
	for seed := range 20 {
		inArena(t, 5, 3, func(a *arena) {
			for round := range 5 {
				req := underKey(fmt.Sprintf("%d/%d", seed, round), slotsOf(4))
				req.Wait = time.Duration(round%2) * time.Second
				var asked sync.WaitGroup
				for _, server := range a.servers {
					asked.Go(func() {
						if _, err := server.Acquire(a.Context(), req); errors.Is(err, lockcore.ErrIdempotencyMismatch) {
							a.Errorf("seed %d: %v", seed, err) // which a client would take for final
						}
					})
				}
				asked.Wait()
				time.Sleep(3 * time.Second) // for what is retracted
				if held := a.heldSlots(4); len(held) > round+1 {
					a.Fatalf("seed %d: %d keys have the slots %q", seed, round+1, held)
				}
				if round == 3 {
					break
				}
			}
		})
	}
}

// Of two waits under one key, through two servers, one gets a slot, and the other finds it. Meanwhile nodes refuse
// the second wait because the key has another slot; that refusal is not final.
func TestKeyWaitsTwice(t *testing.T) {
	for i := range 10 {
		inArena(t, 5, 2, func(a *arena) {
			one, two := a.must(a.servers[0], slotsOf(2)), a.must(a.servers[0], slotsOf(2))
			req := underKey("key", slotsOf(2))
			req.Wait = time.Minute
			got := make(chan lockcore.Lease, 2)
			for _, server := range a.servers {
				go func() {
					lease, err := server.Acquire(a.Context(), req)
					if err != nil {
						a.Error(err)
					}
					got <- lease
				}()
			}
			time.Sleep(time.Second + time.Duration(i)*time.Millisecond)
			a.release(a.servers[0], one, two)
			if x, y := <-got, <-got; x.Resource != y.Resource {
				a.Errorf("the key has %s and %s", x.Resource, y.Resource)
			}
		})
	}
}

// heldSlots returns the slots of "jobs" that are held.
func (a *arena) heldSlots(n int) (held []string) {
	a.Helper()
	for _, name := range lockcore.SlotNames("jobs", n) {
		state, err := a.servers[0].Inspect(a.Context(), name)
		if err != nil {
			a.Fatal(err)
		}
		if state.Held {
			held = append(held, name)
		}
	}
	return held
}

// A request for fewer slots waits only for these slots, and does not block requests for more.
func TestSlotsOfAnotherNumber(t *testing.T) {
	inArena(t, 3, 1, func(a *arena) {
		first := a.must(a.servers[0], slotsOf(1))
		granted := make(chan lockcore.Lease)
		go func() {
			req := slotsOf(1)
			req.Wait = time.Minute
			granted <- a.must(a.servers[0], req)
		}()
		time.Sleep(time.Second)
		if other := a.must(a.servers[0], slotsOf(3)); other.Resource == first.Resource {
			a.Errorf("%s twice", other.Resource)
		}
		a.release(a.servers[0], first)
		if got := <-granted; got.Resource != first.Resource {
			a.Errorf("%s, want %s", got.Resource, first.Resource)
		}
	})
}

// A wait that ends, because its time is over or its caller gives up, leaves no queue blocked.
func TestSlotsWaitEnds(t *testing.T) {
	inArena(t, 3, 1, func(a *arena) {
		one, two := a.must(a.servers[0], slotsOf(2)), a.must(a.servers[0], slotsOf(2))
		req := slotsOf(2)
		req.Wait = 2 * time.Second
		_, err := a.servers[0].Acquire(a.Context(), req)
		timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err)
		if !ok || timeout.Position != 1 || timeout.Resource != one.Resource && timeout.Resource != two.Resource || timeout.Waited < req.Wait {
			a.Errorf("%v", err)
		}
		ctx, cancel := context.WithTimeout(a.Context(), time.Second)
		defer cancel()
		if _, err := a.servers[0].Acquire(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
			a.Errorf("%v", err)
		}
		a.release(a.servers[0], one, two)
		time.Sleep(50 * time.Millisecond)
		a.must(a.servers[0], slotsOf(2))
		a.must(a.servers[0], slotsOf(2))
		a.servers[0].StopWaiting()
		if _, err := a.servers[0].Acquire(a.Context(), req); !errors.Is(err, lockcore.ErrStopping) {
			a.Errorf("%v", err)
		}
	})
}

// A wait survives the loss of a quorum for a moment, even if the wait begins during the loss.
func TestSlotsOutliveALostQuorum(t *testing.T) {
	inArena(t, 3, 1, func(a *arena) {
		a.cut(true, 1, 2)
		go func() {
			time.Sleep(2 * time.Second)
			a.cut(false, 1, 2)
		}()
		req := slotsOf(2)
		req.Wait = 20 * time.Second
		a.must(a.servers[0], req)
	})
}

func TestSlotsThatAreRefused(t *testing.T) {
	inArena(t, 3, 1, func(a *arena) {
		for _, req := range []lockcore.Request{
			{Resource: "jobs", Slots: -1}, {Resource: "jobs", Slots: lockcore.MaxSlots + 1}, {Resource: "jobs#slot2", Slots: 2},
			{Resources: []string{"a", "b"}, Slots: 2}, {Resource: string(make([]byte, 0, 256)) + fmt.Sprintf("%0256d", 7), Slots: 2},
		} {
			if _, err := a.servers[0].Acquire(a.Context(), req); errors.As(err, new(*lockcore.FieldError)) == false {
				a.Errorf("%+v: %v", req, err)
			}
		}
	})
}

// There are never more leases than slots, never two leases of one slot, and the tokens of each slot rise: with
// requests that are broken off, leases that expire, and nodes that are cut off.
func TestSlotsUnderFaults(t *testing.T) { slotsUnderFaults(t, 0, 8, 5) }

func TestSoakSlotsUnderFaults(t *testing.T) {
	testenv.Soak(t, "a fault of slots that four longer seeds have")
	for seed := range uint64(4) {
		slotsUnderFaults(t, seed, 12, 15)
	}
}

func slotsUnderFaults(t *testing.T, seed uint64, clients, requests int) {
	t.Helper()
	const n = 3
	inArena(t, 5, 3, func(a *arena) {
		var mu sync.Mutex
		held, tokens, grants := map[string]bool{}, map[string]fencing.Token{}, 0
		var workers sync.WaitGroup
		for w := range clients {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			workers.Go(func() {
				for range requests {
					req := slotsOf(n)
					req.Wait, req.TTL = time.Duration(rng.Int64N(int64(20*time.Second))), 10*time.Second
					if rng.IntN(2) == 0 {
						req.IdempotencyKey = strconv.FormatUint(rng.Uint64(), 36)
					}
					ctx, cancel := context.WithTimeout(a.Context(), time.Duration(1+rng.Int64N(int64(30*time.Second))))
					server := a.servers[rng.IntN(len(a.servers))]
					lease, err := server.Acquire(ctx, req)
					if cancel(); err != nil {
						continue
					}
					mu.Lock()
					if held[lease.Resource] || lease.Token <= tokens[lease.Resource] {
						a.Errorf("seed %d: %s under token %d, held %v, last token %d", seed, lease.Resource, lease.Token, held, tokens[lease.Resource])
					}
					held[lease.Resource], tokens[lease.Resource] = true, lease.Token
					grants++
					mu.Unlock()
					time.Sleep(min(lease.Validity, time.Duration(rng.Int64N(int64(12*time.Second)))))
					mu.Lock()
					held[lease.Resource] = false
					mu.Unlock()
					_ = server.Release(a.Context(), lease.ID)
				}
			})
		}
		rng := rand.New(rand.NewPCG(seed, 99))
		for range requests {
			time.Sleep(time.Duration(rng.Int64N(int64(5 * time.Second))))
			down := 1 + rng.IntN(5)
			a.cut(true, down)
			time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
			a.cut(false, down)
		}
		workers.Wait()
		if grants < clients*requests/4 {
			a.Errorf("seed %d: %d grants", seed, grants)
		}
		time.Sleep(time.Minute)
		if left := a.heldSlots(n); len(left) > 0 {
			a.Errorf("seed %d: %q stay held", seed, left)
		}
	})
}

// A resource whose name only looks like a slot's is an ordinary resource.
func TestSlotNames(t *testing.T) {
	for name, want := range map[string]string{
		"jobs#slot1": "jobs", "jobs#slot32": "jobs", "jobs#slot33": "jobs#slot33", "jobs#slot0": "jobs#slot0",
		"jobs#slot01": "jobs#slot01", "#slot1": "#slot1", "jobs#slot": "jobs#slot", "a#slot1#slot2": "a#slot1#slot2", "issue#12": "issue#12",
	} {
		if base, slot := lockcore.SlotOf(name); base != want || (slot > 0) != (base != name) {
			t.Errorf("%q is slot %d of %q", name, slot, base)
		}
	}
}

// Each reader takes one slot, and a writer takes all of them. Neither starves, and no two wait for each other
// (docs/adr/0004-no-shared-leases.md).
func TestWriterTakesAllSlots(t *testing.T) {
	inArena(t, 3, 2, func(a *arena) {
		const n = 4
		var mu sync.Mutex
		readers, writers, writes, reads := 0, 0, 0, 0
		enter := func(r, w int) {
			mu.Lock()
			defer mu.Unlock()
			readers, writers = readers+r, writers+w
			if writers > 1 || writers == 1 && readers > 0 || readers > n {
				a.Errorf("%d readers beside %d writers", readers, writers)
			}
		}
		var all sync.WaitGroup
		work := func(server *locker, req lockcore.Request, r, w int, done *int) {
			req.TTL, req.Wait = 20*time.Second, 5*time.Minute
			for range 10 {
				lease := a.must(server, req)
				enter(r, w)
				time.Sleep(100 * time.Millisecond)
				enter(-r, -w)
				a.release(server, lease)
				mu.Lock()
				*done++
				mu.Unlock()
			}
		}
		for i := range 8 {
			all.Go(func() { work(a.servers[i%2], slotsOf(n), 1, 0, &reads) })
		}
		for i := range 2 {
			all.Go(func() {
				work(a.servers[i], lockcore.Request{Resources: lockcore.SlotNames("jobs", n)}, 0, 1, &writes)
			})
		}
		began := time.Now()
		all.Wait()
		if took := time.Since(began); reads != 80 || writes != 20 || took > 2*time.Minute {
			a.Errorf("%d reads and %d writes in %s", reads, writes, took)
		}
	})
}
