package guardtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock/fencing"
)

const (
	holders  = 16
	attempts = 40 // the number of attempts of each holder
)

// outcomes collects the results of many holders.
type outcomes struct {
	mu       sync.Mutex
	versions map[int64]fencing.Token // by version of an accepted write, its token
	problems []string

	next  atomic.Int64 // the last token that a holder got
	floor atomic.Int64 // the largest token whose attempt was reported as accepted
}

func (o *outcomes) problemf(format string, args ...any) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.problems = append(o.problems, fmt.Sprintf(format, args...))
}

func (o *outcomes) report(t *testing.T) {
	t.Helper()
	for _, p := range o.problems {
		t.Error(p)
	}
}

// accepted checks the guarantee for an accepted attempt. floor is the value that o.floor had before the
// attempt began.
func (o *outcomes) accepted(token, floor fencing.Token) {
	if token < floor {
		o.problemf("token %d was accepted after %d had been", token, floor)
	}
	for {
		now := o.floor.Load()
		if now >= int64(token) || o.floor.CompareAndSwap(now, int64(token)) {
			return
		}
	}
}

func (o *outcomes) refused(err error, token fencing.Token) {
	var stale *fencing.StaleTokenError
	switch {
	case !errors.As(err, &stale):
		o.problemf("token %d: %v", token, err)
	case stale.Presented != token || stale.Highest <= token || int64(stale.Highest) > o.next.Load():
		o.problemf("token %d: the refusal says %+v", token, *stale)
	}
}

func (o *outcomes) wrote(token fencing.Token, version int64) {
	o.mu.Lock()
	other, taken := o.versions[version]
	o.versions[version] = token
	o.mu.Unlock()
	if taken {
		o.problemf("tokens %d and %d both wrote version %d", other, token, version)
	}
}

// attempt makes one claim or write on resource r, with a new token or one that is slightly older.
func (o *outcomes) attempt(ctx context.Context, g fencing.Guard, draw *rand.Rand) {
	token := fencing.Token(o.next.Add(1))
	if draw.IntN(3) == 0 {
		token = max(1, token-fencing.Token(draw.IntN(holders)))
	}
	floor := fencing.Token(o.floor.Load())
	writes := draw.IntN(2) == 0
	var record fencing.Record
	var err error
	if writes {
		record, err = g.Write(ctx, "r", token, json.RawMessage(`1`))
	} else {
		record, err = g.Claim(ctx, "r", token)
	}
	if err != nil {
		o.refused(err, token)
		return
	}
	o.accepted(token, floor)
	if record.Mark != token {
		o.problemf("token %d was accepted, and the mark is %d", token, record.Mark)
	}
	if writes {
		o.wrote(token, record.Version)
	}
}

func inParallel(n int, work func(worker int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { work(i) })
	}
	wg.Wait()
}

// manyHolders checks that the mark behaves like one number that only rises: an attempt that begins after a
// larger token was accepted is refused.
func manyHolders(t *testing.T, g fencing.Guard) {
	o := &outcomes{versions: map[int64]fencing.Token{}}
	ctx := limited(t)
	inParallel(holders, func(holder int) {
		draw := rand.New(rand.NewPCG(1, uint64(holder)))
		for range attempts {
			o.attempt(ctx, g, draw)
		}
	})
	o.report(t)
	final, err := g.Read(ctx, "r")
	if err != nil {
		t.Fatal(err)
	}
	if int64(final.Mark) != o.floor.Load() {
		t.Errorf("the mark is %d, the largest accepted token %d", final.Mark, o.floor.Load())
	}
	if final.Version != int64(len(o.versions)) {
		t.Errorf("version is %d after %d accepted writes", final.Version, len(o.versions))
	}
	for version := range final.Version {
		if _, ok := o.versions[version+1]; !ok {
			t.Errorf("nobody wrote version %d of %d", version+1, final.Version)
		}
	}
}

// manyIncrements lets holders supersede each other in the middle of read-modify-writes, and checks that no
// increment that succeeded is lost.
func manyIncrements(t *testing.T, g fencing.Guard) {
	var next, done atomic.Int64
	o := &outcomes{versions: map[int64]fencing.Token{}}
	ctx := limited(t)
	mustWrite(t, g, "r", fencing.Token(next.Add(1)), `0`)
	inParallel(holders, func(int) {
		for range attempts {
			token := fencing.Token(next.Add(1))
			o.next.Store(next.Load())
			switch err := increment(ctx, g, token); {
			case err == nil:
				done.Add(1)
			case !errors.Is(err, fencing.ErrStaleToken):
				o.problemf("token %d: %v", token, err)
			}
		}
	})
	o.report(t)
	final, err := g.Read(ctx, "r")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprint(done.Load()); string(final.Value) != want {
		t.Errorf("%s increments were answered, and the value is %s", want, final.Value)
	}
	t.Logf("%d of %d increments went through, none was lost", done.Load(), holders*attempts)
}

// increment claims the record, and writes the increased value.
func increment(ctx context.Context, g fencing.Guard, token fencing.Token) error {
	record, err := g.Claim(ctx, "r", token)
	if err != nil {
		return err
	}
	var n int64
	if err := json.Unmarshal(record.Value, &n); err != nil {
		return fmt.Errorf("value %s: %w", record.Value, err)
	}
	_, err = g.Write(ctx, "r", token, fmt.Appendf(nil, "%d", n+1))
	return err
}

// firstClaimsRace lets all holders make the first claim of a resource at the same time.
func firstClaimsRace(t *testing.T, g fencing.Guard) {
	ctx := limited(t)
	for round := range 20 {
		resource := fmt.Sprintf("first/%d", round)
		o := &outcomes{versions: map[int64]fencing.Token{}}
		o.next.Store(holders)
		inParallel(holders, func(worker int) {
			token := fencing.Token(worker + 1)
			floor := fencing.Token(o.floor.Load())
			if _, err := g.Claim(ctx, resource, token); err != nil {
				o.refused(err, token)
				return
			}
			o.accepted(token, floor)
		})
		o.report(t)
		if record, err := g.Read(ctx, resource); err != nil || record.Mark != holders {
			t.Fatalf("after first claims with tokens 1 to %d the record is %s (%v)", holders, show(record), err)
		}
	}
}
