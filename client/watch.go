package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// How often a Watch looks.
const (
	watchPause  = 10 * time.Second // while a stream of events is open
	blindPause  = time.Second      // while no stream is open
	streamQuiet = 30 * time.Second // a stream is given up after this time without a line; the server sends one every 10 s
)

// Watch reports who holds a resource: now, and after each change. It lets processes that do not compete for a
// leadership (Elect) learn who leads.
//
// A lock is what Inspect returns: the holder, the token, and for how long it is held. It may be outdated when
// it is read. Of several quick changes only the last may be reported, but tokens never fall. A change is
// reported as soon as the service's events show it, and otherwise within 10 s; within 1 s while no server sends
// events.
//
// ErrUnavailable means that the holder is unknown until the next lock is reported. Any other error ends the
// watch: ErrDenied, ErrInvalid, ErrClosed, or another *ProblemError. The end of ctx ends the watch without an
// error.
func (c *Client) Watch(ctx context.Context, resource string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if err := errors.Join(c.made(), checkResource(resource)); err != nil {
			yield(Lock{}, failed("watch", resource, err))
			return
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer context.AfterFunc(c.life.closing, func() { cancel(ErrClosed) })() //nolint:contextcheck // two contexts: the caller's, and the client's
		l := listener{client: c, resource: resource, heard: make(chan struct{}, 1), hears: make(chan bool)}
		var listening sync.WaitGroup
		listening.Go(func() { l.run(ctx) })
		defer listening.Wait()
		defer cancel(nil)
		w := watch{client: c, resource: resource, tell: yield}
		for w.look(ctx) && l.await(ctx) {
		}
		if errors.Is(context.Cause(ctx), ErrClosed) && !w.over {
			yield(Lock{}, failed("watch", resource, ErrClosed))
		}
	}
}

// watch is the state of a Watch: what it has reported.
type watch struct {
	client   *Client
	resource string
	tell     func(Lock, error) bool

	reported Lock          // the last reported lock; zero before the first
	newest   fencing.Token // the largest token reported
	unknown  bool          // an error was reported after the last lock
	over     bool          // nothing may be reported any more
}

// look reports a change, if there is one, and returns whether the watch continues.
func (w *watch) look(ctx context.Context) bool {
	lock, err := w.client.Inspect(ctx, w.resource)
	switch {
	case ctx.Err() != nil:
		return false
	case err == nil && w.isNews(lock):
		w.reported, w.newest, w.unknown = lock, max(w.newest, lock.Token), false
		w.over = !w.tell(lock, nil)
	case errors.Is(err, ErrUnavailable) && !w.unknown:
		w.unknown = true
		w.over = !w.tell(Lock{}, err)
	case err != nil && !errors.Is(err, ErrUnavailable):
		w.tell(Lock{}, err)
		w.over = true
	}
	return !w.over
}

// isNews reports whether the lock must be reported. If few nodes reply, the service may show a lock that was
// already released.
func (w *watch) isNews(lock Lock) bool {
	if lock.Held && lock.Token < w.newest {
		return false
	}
	return w.unknown || w.reported.Resource == "" || lock.Held != w.reported.Held || lock.Token != w.reported.Token
}

// listener reads the service's events about a resource. An event is only a reason to look, because any of them
// may be lost.
type listener struct {
	client   *Client
	resource string
	heard    chan struct{} // receives a signal after an event
	hears    chan bool     // receives whether a stream is open, after each change
	open     bool          // the last value received from hears; used by await
}

// await waits until there is a reason to look, and returns false when ctx has ended.
func (l *listener) await(ctx context.Context) bool {
	pause := blindPause
	if l.open {
		pause = watchPause
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-l.heard:
	case l.open = <-l.hears:
	case <-timer.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// run keeps a stream of events open, trying one server after the other.
func (l *listener) run(ctx context.Context) {
	for n := int(l.client.at.Load()); ctx.Err() == nil; n++ {
		if l.listen(ctx, l.client.servers[n%len(l.client.servers)]) == nil {
			l.say(ctx, false)
		}
		_ = sleep(ctx, blindPause)
	}
}

func (l *listener) say(ctx context.Context, open bool) {
	select {
	case l.hears <- open:
	case <-ctx.Done():
	}
}

var errNoStream = errors.New("the server streams no events")

// listen reads events from a server until its stream ends. It returns an error if there was no stream to read.
func (l *listener) listen(ctx context.Context, server string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(l.client.timeout, cancel)
	defer quiet.Stop()
	query := url.Values{"resource": {l.resource}}
	m, err := l.client.message(ctx, &call{method: http.MethodGet, path: "/events?" + query.Encode()}, 0)
	if err != nil {
		return err
	}
	req, err := m.request(ctx, server)
	if err != nil {
		return err
	}
	resp, err := l.client.http.Do(req)
	if err != nil {
		return fmt.Errorf("client: %w", withoutURL(err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK || !strings.HasPrefix(resp.Header.Get("Content-Type"), wire.TypeEvents) {
		return errNoStream
	}
	quiet.Reset(streamQuiet)
	l.say(ctx, true)
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); quiet.Reset(streamQuiet) {
		if strings.HasPrefix(lines.Text(), "event:") {
			select {
			case l.heard <- struct{}{}:
			default:
			}
		}
	}
	return nil
}
