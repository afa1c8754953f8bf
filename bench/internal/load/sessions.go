package load

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
)

// failurePause keeps a worker whose peer fails at once from using a whole processor.
const failurePause = 5 * time.Millisecond

// sessions is a crew with one goroutine for each worker.
type sessions struct {
	job     Job
	workers []peer.Session
	records []*record
	hot     hotspot
	line    chan struct{} // one entry for each free place in the queue; nil if workers do not wait
}

// spare is the number of workers of a hot resource in addition to its waiters. A worker that
// released the resource waits in the queue again only after another worker has acquired it. So
// the queue keeps its length, and no worker hands the resource to itself.
const spare = 2

func newSessions(ctx context.Context, p peer.Peer, job Job, records []*record) (*sessions, error) {
	s := &sessions{job: job, records: records, workers: make([]peer.Session, len(records))}
	if job.Hot {
		s.line = make(chan struct{}, job.Workers)
		for range job.Workers {
			s.line <- struct{}{}
		}
	}
	err := each(context.WithoutCancel(ctx), len(records), func(ctx context.Context, i int) (err error) {
		s.workers[i], err = p.Open(ctx)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, s.dismiss(ctx))
	}
	return s, nil
}

func (s *sessions) dismiss(ctx context.Context) error {
	return each(ctx, len(s.workers), func(_ context.Context, i int) error {
		if s.workers[i] == nil {
			return nil
		}
		return s.workers[i].Close()
	})
}

func (s *sessions) work(ctx context.Context) error {
	var all sync.WaitGroup
	for i := range s.workers {
		all.Go(func() { s.loop(ctx, i) })
	}
	all.Wait()
	return nil
}

// loop is the whole run of one worker.
func (s *sessions) loop(ctx context.Context, i int) {
	r := s.records[i]
	for n := 0; !r.w.stopped() && s.queue(ctx) == nil; n++ {
		err := s.turn(ctx, i, s.job.Claim(i, n))
		switch {
		case err == nil:
		case errors.Is(err, peer.ErrBusy):
			r.refused()
		case ctx.Err() != nil: // cut off while it waited in the queue
		default:
			r.failure(err)
			time.Sleep(failurePause)
		}
	}
}

// queue waits for a place in the queue, if its places are limited.
func (s *sessions) queue(ctx context.Context) error {
	if s.line == nil {
		return ctx.Err()
	}
	select {
	case <-s.line:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave gives the place in the queue to the next worker.
func (s *sessions) leave() {
	if s.line != nil {
		s.line <- struct{}{}
	}
}

// turn acquires, does its work, and releases.
func (s *sessions) turn(ctx context.Context, i int, claim peer.Claim) error {
	session, r := s.workers[i], s.records[i]
	t := turn{begin: time.Now()}
	err := session.Acquire(ctx, claim)
	t.acquired = time.Now()
	s.leave()
	if err != nil {
		return err
	}
	if s.job.Hot {
		s.hot.granted(t.acquired, r)
		hold(s.job.Hold)
	}
	t.releasing = time.Now()
	if s.job.Hot {
		s.hot.releasing(t.releasing)
	}
	err = session.Release(ctx)
	t.released = time.Now()
	if s.job.Hot {
		s.hot.released(t, r)
	}
	if err != nil {
		return err
	}
	r.turned(t)
	return nil
}

func hold(d time.Duration) {
	if d > 0 {
		time.Sleep(d)
	}
}

// hotspot times the hand-offs of one resource.
type hotspot struct {
	mu               sync.Mutex
	grants, releases int
	sent             time.Time // when the last release was sent
	free             time.Time // when the response to the last release arrived
}

func (h *hotspot) releasing(at time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent = at
}

// granted records a grant. The next worker in the queue may get its grant before the releaser
// gets the response to its release; the hand-off then counts as 0.
func (h *hotspot) granted(at time.Time, r *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grants++
	if h.grants == 1 || !r.w.measuring() {
		return // it is the first grant
	}
	var took time.Duration
	if h.releases == h.grants-1 {
		took = max(0, at.Sub(h.free))
	}
	r.handoffs = append(r.handoffs, took)
	r.turnovers = append(r.turnovers, max(0, at.Sub(h.sent)))
}

func (h *hotspot) released(t turn, r *record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.releases++
	h.free = t.released
	if r.w.measuring() {
		r.held = append(r.held, t.releasing.Sub(t.acquired))
	}
}
