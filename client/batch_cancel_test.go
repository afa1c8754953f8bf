package client_test

import (
	"context"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// When one caller of a batch gives up, the batch continues for the others. The lease that its call was granted is
// released.
func TestACancelledCallInABatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		leaves, stays := take(t, c, "leaves"), take(t, c, "stays")
		free()
		batch := at.next(t)
		wantPath(t, batch, "POST /locks/batch")
		leaves.cancel()
		leaves.fails(t, context.Canceled)
		cancel := at.next(t)
		wantPath(t, cancel, "POST /cancel")
		cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		if err := batch.Context().Err(); err != nil {
			t.Errorf("the batch: %v", err)
		}
		batch.grants(t, nil)
		stays.gets(t, "stays")
		release := at.next(t)
		if got := release.operations(t); !slices.Equal(got, []single{{"release", "id-leaves", ""}}) {
			t.Errorf("%v comes", got)
		}
		release.grants(t, nil)
		at.none(t)
	})
}

// A call is given up, and then its batch gets no response. The client cancels the call a second time, because the
// batch may have taken effect after the first cancel.
func TestACancelledCallInABatchWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one", client.WithPatience(0))
		free := busy(t, c, at)
		leaves, stays := take(t, c, "leaves"), take(t, c, "stays")
		free()
		batch := at.next(t)
		key := batch.operations(t)[0].key
		leaves.cancel()
		leaves.fails(t, context.Canceled)
		ended := func() {
			t.Helper()
			cancel := at.next(t)
			wantPath(t, cancel, "POST /cancel")
			if got := cancel.Header.Get(wire.HeaderIdempotencyKey); got == key {
				key = ""
			}
			cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		}
		ended()
		if key != "" {
			t.Error("another call was ended")
		}
		key = batch.operations(t)[0].key
		batch.answer <- nil
		stays.fails(t, client.ErrUnavailable)
		ended()
		ended() // that of stays
		if key != "" {
			t.Error("it was not ended again")
		}
		at.none(t)
	})
}

// When all callers of a batch have given up, nobody reads the response: the client aborts the request, as it does
// with a single request.
func TestACancelledBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		a, b := take(t, c, "a"), take(t, c, "b")
		free()
		batch := at.next(t)
		a.cancel()
		b.cancel()
		a.fails(t, context.Canceled)
		b.fails(t, context.Canceled)
		synctest.Wait()
		if batch.Context().Err() == nil {
			t.Error("the batch was not cancelled")
		}
		for range 3 { // the first is ended again, since its batch may have taken effect in between
			cancel := at.next(t)
			wantPath(t, cancel, "POST /cancel")
			cancel.answer <- response(cancel.Request, http.StatusNoContent, nil)
		}
		at.none(t)
	})
}

// A call that was cancelled before it was sent sends nothing.
func TestACallThatIsCancelledBeforeItsBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, at := atCounter(t, "http://one")
		free := busy(t, c, at)
		a, b, d := take(t, c, "a"), take(t, c, "b"), take(t, c, "d")
		b.cancel()
		b.fails(t, context.Canceled)
		free()
		batch := at.next(t)
		if got := batch.operations(t); len(got) != 2 || got[0].of != "a" || got[1].of != "d" {
			t.Errorf("%v comes", got)
		}
		batch.grants(t, nil)
		a.gets(t, "a")
		d.gets(t, "d")
		at.none(t)
	})
}

// When the response to a batch is overdue, the client gives the try up and asks the next server with the same key. A
// lease that the batch is granted after that is released, unless it is the same lease.
func TestAnOverdueBatch(t *testing.T) {
	for name, late := range map[string]int64{"another lease": 8, "the same lease": 7} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, at := atCounter(t, "http://one,http://two", client.WithBatchAfter(0), client.WithTimeout(20*time.Second))
				release := func(id string) (answered chan error) {
					answered = make(chan error, 1)
					go func() { answered <- c.Release(t.Context(), id) }()
					synctest.Wait()
					return answered
				}
				slow := release("slow") // answers take 200 ms, so one is overdue after 800 ms; an acquire has 500 ms for the first server
				came := at.next(t)
				time.Sleep(200 * time.Millisecond)
				came.grants(t, nil)
				if err := <-slow; err != nil {
					t.Fatal(err)
				}
				a, stays := take(t, c, "a"), release("x")
				batch := at.next(t)
				again := at.next(t)
				if again.URL.Host != "two" || !slices.Equal(again.operations(t), batch.operations(t)[:1]) {
					t.Errorf("%v comes to %s, after %v", again.operations(t), again.URL, batch.operations(t))
				}
				again.grants(t, nil)
				a.gets(t, "a")
				if err := batch.Context().Err(); err != nil {
					t.Errorf("the batch: %v", err)
				}
				batch.grants(t, map[string]wire.BatchResult{"a": grantOf(single{"acquire", "a", ""}, late)})
				if err := <-stays; err != nil {
					t.Error(err)
				}
				if late == int64(a.lease.Token()) {
					at.none(t)
					return
				}
				end := at.next(t)
				if got := end.operations(t); !slices.Equal(got, []single{{"release", "id-a", ""}}) {
					t.Errorf("%v comes", got)
				}
				end.grants(t, nil)
			})
		})
	}
}
