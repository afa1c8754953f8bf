package sets_test

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// running starts a Locker over the nodes, which runs until the test ends.
func running(tb testing.TB, cfg sets.Config, nodes []node.Node) *locker {
	tb.Helper()
	l, err := newLocker(cfg, nodes)
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = l.Run(ctx)
	}()
	tb.Cleanup(func() { cancel(); <-ended })
	return l
}

// serving is a running Locker over n models, with its own secret.
func serving(tb testing.TB, name string, n int) *locker {
	tb.Helper()
	var nodes []node.Node
	for i := range n {
		nodes = append(nodes, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprintf("%s%d", name, i+1)}))
	}
	l := running(tb, sets.Config{New: true, WatchInterval: 10 * time.Millisecond, NodeTimeout: time.Second}, nodes)
	testenv.Eventually(tb, 10*time.Second, func() error {
		if s := l.Status(); !s.Ready {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	return l
}

// forgery has real ids to make others of: of leases that are held, have ended, or
// are of several resources, of another owner and of another cluster.
type forgery struct {
	locker *locker
	owner  context.Context //nolint:containedctx // whose calls are made
	ids    []string        // what the owner was given
	others []string        // and others were
}

func newForgery(tb testing.TB) *forgery {
	tb.Helper()
	f := &forgery{locker: serving(tb, "own", 3), owner: servicetest.WithCaller(context.Background(), "alice")}
	take := func(l *locker, owner context.Context, req lockcore.Request) string {
		req.TTL = time.Minute
		lease, err := l.Acquire(owner, req)
		if err != nil {
			tb.Fatal(err)
		}
		return lease.ID
	}
	bob := servicetest.WithCaller(context.Background(), "bob")
	for _, req := range []lockcore.Request{
		{Resource: "held"}, {Resource: "free"}, {Resources: []string{"b1", "b2", "b3"}}, {Resource: "keyed", IdempotencyKey: "k"},
	} {
		f.ids = append(f.ids, take(f.locker, f.owner, req))
	}
	f.others = append(f.others,
		take(f.locker, bob, lockcore.Request{Resource: "bobs"}),
		take(serving(tb, "foreign", 3), f.owner, lockcore.Request{Resource: "free"}))
	if err := f.locker.Release(f.owner, f.ids[1]); err != nil {
		tb.Fatal(err)
	}
	return f
}

// refused makes every call with the id.
func (f *forgery) refused(tb testing.TB, id string) {
	tb.Helper()
	_, extend := f.locker.Extend(f.owner, id, 0)
	_, look := f.locker.Lease(f.owner, id)
	_, read := f.locker.Open(f.owner, id)
	_, end := f.locker.EndOf(f.owner, id)
	for call, err := range map[string]error{"extend": extend, "look": look, "read": read, "end": end, "release": f.locker.Release(f.owner, id)} {
		if !errors.Is(err, lockcore.ErrNotHeld) {
			tb.Fatalf("%s of %s: %v", call, id, err)
		}
	}
}

// sound checks that the next tokens are within a minute of the clock, and that the live leases are still held.
func (f *forgery) sound(tb testing.TB) {
	tb.Helper()
	for _, resource := range []string{"free", "never used"} {
		lease, err := f.locker.Acquire(f.owner, lockcore.Request{Resource: resource})
		if err != nil || lease.Token > node.FloorAt(time.Now().Add(time.Minute)) {
			tb.Fatalf("the next lease of %s: token %d, %v", resource, lease.Token, err)
		}
		if err := f.locker.Release(f.owner, lease.ID); err != nil {
			tb.Fatal(err)
		}
	}
	for _, i := range []int{0, 2, 3} {
		if _, err := f.locker.Extend(f.owner, f.ids[i], time.Minute); err != nil {
			tb.Fatalf("lease %d: %v", i, err)
		}
	}
}

// edited makes another id from a real one.
func (f *forgery) edited(which, how uint8, at uint16, with []byte) string {
	all := append(slices.Clone(f.ids), f.others...)
	raw, _ := base64.RawURLEncoding.DecodeString(all[int(which)%len(all)])
	cut := int(at) % (len(raw) + 1)
	switch how % 5 {
	case 0: // write over
		copy(raw[cut:], with)
	case 1:
		raw = slices.Insert(raw, cut, with...)
	case 2:
		raw = slices.Delete(raw, cut, min(len(raw), cut+len(with)))
	case 3: // the tail of another
		other, _ := base64.RawURLEncoding.DecodeString(all[(int(which)+1+len(with))%len(all)])
		raw = append(raw[:cut:cut], other[min(cut, len(other)):]...)
	case 4:
		raw = with
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}

// FuzzForgedLeaseIDs edits ids in all ways: no edited id is accepted, and none changes anything.
func FuzzForgedLeaseIDs(f *testing.F) {
	long := binary.AppendUvarint(nil, uint64(fencing.MaxToken))
	for how := range uint8(5) {
		for at := range uint16(120) {
			f.Add(uint8(at), how, at, []byte{byte(at), 0xff}[:1+at%2])
			f.Add(uint8(at/7), how, at, long)
		}
	}
	attack := newForgery(f)
	f.Fuzz(func(t *testing.T, which, how uint8, at uint16, with []byte) {
		id := attack.edited(which, how, at, with)
		if slices.Contains(attack.ids, id) {
			return // edited into what it was
		}
		attack.refused(t, id)
		attack.sound(t)
	})
}
