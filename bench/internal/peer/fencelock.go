package peer

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/bench/internal/rawhttp"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// HTTP is a running fencelock server, or several over the same nodes. Each acquire has an
// idempotency key, as fencelock's clients send one.
type HTTP struct {
	name  string
	addrs []string
}

// NewHTTP returns a peer for the server at addr.
func NewHTTP(addr string) *HTTP { return NewServers("fencelock-http", addr) }

// NewBareHTTP returns a peer for the server of recorded responses at addr, which has no locks.
func NewBareHTTP(addr string) *HTTP { return NewServers("bare-http", addr) }

// NewServers returns a peer for one or several servers, with its own name; clients are spread
// over the servers.
func NewServers(name string, addrs ...string) *HTTP { return &HTTP{name: name, addrs: addrs} }

// Name returns the name in tables.
func (h *HTTP) Name() string { return h.name }

// Addrs returns the addresses as host:port.
func (h *HTTP) Addrs() []string { return h.addrs }

// Dialect returns the dialect of one client.
func (*HTTP) Dialect() Dialect { return &fencelock{keys: rand.Text()} }

// Open connects.
func (h *HTTP) Open(ctx context.Context) (Session, error) {
	return session(speak(ctx, h.addrs[0], h.Dialect()))
}

// Close does nothing: the caller started the server, and stops it.
func (*HTTP) Close() error { return nil }

// fencelock is the dialect.
type fencelock struct {
	lease    []byte // the header line with the lease id
	body     []byte
	keys     string // the prefix of its idempotency keys
	acquires int
}

func (*fencelock) Setup(context.Context, *rawhttp.Conn) error    { return nil }
func (*fencelock) Teardown(context.Context, *rawhttp.Conn) error { return nil }

func (f *fencelock) Acquire(buf []byte, c Claim) []byte {
	f.body = append(f.body[:0], `{"resource":"`...)
	f.body = append(f.body, c.Resource...)
	f.body = append(f.body, `","ttl_ms":`...)
	f.body = strconv.AppendInt(f.body, c.TTL.Milliseconds(), 10)
	if c.Wait > 0 {
		f.body = append(f.body, `,"wait_ms":`...)
		f.body = strconv.AppendInt(f.body, c.Wait.Milliseconds(), 10)
	}
	f.body = append(f.body, '}')
	f.acquires++
	return rawhttp.AppendJSON(buf, http.MethodPost, "/locks", keyHeader(f.keys, f.acquires), f.body)
}

// keyHeader returns the header line with the n-th idempotency key of a client.
func keyHeader(client string, n int) string {
	return "Idempotency-Key: " + client + strconv.Itoa(n) + "\r\n"
}

func (f *fencelock) Acquired(resp *rawhttp.Response) error {
	switch resp.Status {
	case http.StatusCreated, http.StatusOK:
		f.lease = appendLeaseHeader(f.lease[:0], resp.Body)
		return nil
	case http.StatusConflict:
		return ErrBusy
	}
	return refused(resp)
}

func (f *fencelock) Release(buf []byte) []byte {
	return rawhttp.AppendRequest(buf, http.MethodDelete, "/leases/current", string(f.lease))
}

// appendLeaseHeader appends the header line with the lease id from the body of a grant.
func appendLeaseHeader(buf, body []byte) []byte {
	_, id, _ := bytes.Cut(body, []byte(`"lease_id":"`))
	id, _, _ = bytes.Cut(id, []byte{'"'})
	buf = append(buf, "Fencelock-Lease: "...)
	buf = append(buf, id...)
	return append(buf, "\r\n"...)
}

func (*fencelock) Released(resp *rawhttp.Response) error { return expect(resp, http.StatusNoContent) }

func expect(resp *rawhttp.Response, status int) error {
	if resp.Status != status {
		return refused(resp)
	}
	return nil
}

// refused returns an error that quotes an unexpected response.
func refused(resp *rawhttp.Response) error {
	return fmt.Errorf("answered %d: %.300s", resp.Status, resp.Body)
}

// Ready asks a fencelock server how many of its nodes vote.
func Ready(ctx context.Context, addr string) (voting int, err error) {
	var ready struct {
		Voting int `json:"voting"`
	}
	err = get(ctx, addr, "/readyz", &ready)
	return ready.Voting, err
}

// get reads a JSON body, whatever the status.
func get(ctx context.Context, addr, path string, into any) (err error) {
	conn, err := rawhttp.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	resp, err := conn.Do(ctx, rawhttp.AppendRequest(nil, http.MethodGet, path, ""))
	if err != nil {
		return err
	}
	return json.Unmarshal(resp.Body, into)
}

// InProcess is fencelock without its server: the Locker as a library.
type InProcess struct {
	locker *sets.Locker
	stop   context.CancelFunc
	done   chan error
	nodes  []*redisnode.Node
}

// NewInProcess connects to the nodes, whose databases must be empty.
func NewInProcess(urls []string) (*InProcess, error) {
	p := &InProcess{done: make(chan error, 1)}
	nodes := make([]node.Node, 0, len(urls))
	for _, url := range urls {
		node, err := redisnode.Open(url, redisnode.Options{})
		if err != nil {
			return nil, errors.Join(err, p.closeNodes())
		}
		p.nodes, nodes = append(p.nodes, node), append(nodes, node)
	}
	locker, err := sets.New(sets.Config{New: true, MaxTTL: 10 * time.Minute}, nodes)
	if err != nil {
		return nil, errors.Join(err, p.closeNodes())
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.locker, p.stop = locker, cancel
	go func() { p.done <- locker.Run(ctx) }()
	return p, nil
}

// Name returns the name in tables.
func (*InProcess) Name() string { return "fencelock-inprocess" }

// Voting returns the number of nodes that vote.
func (p *InProcess) Voting() int { return p.locker.Status().Voting }

// Open makes a session, which costs next to nothing.
func (p *InProcess) Open(context.Context) (Session, error) {
	return &inProcess{locker: p.locker}, nil
}

// Close stops the Locker and its nodes.
func (p *InProcess) Close() error {
	p.stop()
	err := <-p.done
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, p.closeNodes())
}

func (p *InProcess) closeNodes() error {
	errs := make([]error, 0, len(p.nodes))
	for _, n := range p.nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

type inProcess struct {
	locker *sets.Locker
	lease  string
}

func (s *inProcess) Acquire(ctx context.Context, c Claim) error {
	lease, err := s.locker.Acquire(ctx, lockcore.Request{Caller: lockcore.Everyone, Resource: c.Resource, TTL: c.TTL, Wait: c.Wait})
	if err != nil {
		if errors.Is(err, lockcore.ErrHeld) {
			return ErrBusy
		}
		return err
	}
	s.lease = lease.ID
	return nil
}

func (s *inProcess) Release(ctx context.Context) error {
	lease, err := s.locker.Open(ctx, lockcore.Everyone, s.lease)
	if err != nil {
		return err
	}
	_, err = lease.Release(ctx)
	return err
}

func (*inProcess) Close() error { return nil }
