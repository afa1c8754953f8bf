package api

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencelock/fencelock/fencing"
)

// largeGuard takes three seconds to count what it keeps.
type largeGuard struct {
	fencing.Guard

	counts int64
}

func (g *largeGuard) Usage(ctx context.Context) (fencing.Usage, error) {
	g.counts++
	time.Sleep(3 * time.Second)
	return fencing.Usage{Records: g.counts}, ctx.Err()
}

// A storage that takes long to count is counted seldom, and callers continue by the last count meanwhile.
func TestRecordsAreCountedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		guard := &largeGuard{}
		r := newRecords(guard, fencing.Usage{Records: 10, Bytes: 10}, prometheus.NewRegistry())
		want := func(when string, records int64, within time.Duration) {
			t.Helper()
			begun := time.Now()
			got := r.count(t.Context()).Records
			if took := time.Since(begun); got != records || took > within {
				t.Errorf("%s: %d records after %s, want %d within %s", when, got, took, records, within)
			}
		}
		want("first", 1, 3*time.Second)
		time.Sleep(countShare*3*time.Second - time.Millisecond)
		want("a little too soon", 1, 0)
		time.Sleep(time.Millisecond)
		go r.count(t.Context())
		synctest.Wait()
		want("while another counts", 1, 0)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		want("after that", 2, 0)
	})
}
