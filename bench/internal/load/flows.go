package load

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/rawhttp"
)

// flows is a crew of HTTP clients that one thread drives.
type flows struct {
	addrs []string
	flows []rawhttp.Flow
	crew  []*flow
}

func newFlows(ctx context.Context, p peer.Remote, job Job, records []*record) (*flows, error) {
	f := &flows{addrs: p.Addrs()}
	for i, r := range records {
		one := &flow{dialect: p.Dialect(), job: job, worker: i, record: r}
		f.crew = append(f.crew, one)
		f.flows = append(f.flows, one)
	}
	if err := f.withConns(ctx, peer.Dialect.Setup); err != nil {
		return nil, err
	}
	return f, nil
}

// withConns calls do for every dialect, on a new connection, because the dialect's own connection
// is in use.
func (f *flows) withConns(ctx context.Context, do func(peer.Dialect, context.Context, *rawhttp.Conn) error) error {
	return each(ctx, len(f.crew), func(ctx context.Context, i int) error {
		conn, err := rawhttp.Dial(ctx, f.addrs[i%len(f.addrs)])
		if err != nil {
			return err
		}
		return errors.Join(do(f.crew[i].dialect, ctx, conn), conn.Close())
	})
}

func (f *flows) work(ctx context.Context) error { return rawhttp.Drive(ctx, f.addrs, f.flows) }

func (f *flows) dismiss(ctx context.Context) error { return f.withConns(ctx, peer.Dialect.Teardown) }

// flow is one client's cycle of requests.
type flow struct {
	dialect peer.Dialect
	job     Job
	worker  int
	record  *record

	state state
	turns int
	turn  turn
}

type state int

const (
	idle state = iota
	acquiring
	releasing
)

// Next handles a response and appends the next request.
func (f *flow) Next(resp *rawhttp.Response, now time.Time, buf []byte) ([]byte, error) {
	switch f.state {
	case acquiring:
		return f.acquired(resp, now, buf), nil
	case releasing:
		return f.released(resp, now, buf), nil
	default:
		return f.begin(now, buf), nil
	}
}

func (f *flow) begin(now time.Time, buf []byte) []byte {
	if f.record.w.stopped() {
		return buf
	}
	claim := f.job.Claim(f.worker, f.turns)
	f.turns++
	f.state, f.turn = acquiring, turn{begin: now}
	return f.dialect.Acquire(buf, claim)
}

func (f *flow) acquired(resp *rawhttp.Response, now time.Time, buf []byte) []byte {
	if err := f.dialect.Acquired(resp); err != nil {
		f.lost(err)
		return f.begin(now, buf)
	}
	f.turn.acquired, f.turn.releasing = now, now
	f.state = releasing
	return f.dialect.Release(buf)
}

func (f *flow) lost(err error) {
	if errors.Is(err, peer.ErrBusy) {
		f.record.refused()
		return
	}
	f.record.failure(err)
}

func (f *flow) released(resp *rawhttp.Response, now time.Time, buf []byte) []byte {
	if err := f.dialect.Released(resp); err != nil {
		f.record.failure(err)
		return f.begin(now, buf)
	}
	f.turn.released = now
	f.record.turned(f.turn)
	return f.begin(now, buf)
}
