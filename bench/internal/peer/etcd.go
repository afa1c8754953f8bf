package peer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/fencelock/fencelock/bench/internal/rawhttp"
)

// leaseSeconds is the TTL of etcd's leases: longer than any run.
const leaseSeconds = 600

// Etcd is etcd's lock recipe (clientv3/concurrency) over gRPC.
type Etcd struct{ client *clientv3.Client }

// NewEtcd connects to the server.
func NewEtcd(addr string) (*Etcd, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + addr}, Logger: zap.NewNop()})
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	return &Etcd{client: c}, nil
}

// Name returns the name in tables.
func (*Etcd) Name() string { return "etcd-grpc" }

// Open makes an etcd session for the worker.
func (e *Etcd) Open(ctx context.Context) (Session, error) {
	s, err := concurrency.NewSession(e.client, concurrency.WithTTL(leaseSeconds), concurrency.WithContext(context.WithoutCancel(ctx)))
	if err != nil {
		return nil, err
	}
	return &etcdSession{session: s}, nil
}

// Close closes the connection.
func (e *Etcd) Close() error { return e.client.Close() }

type etcdSession struct {
	session *concurrency.Session
	mutex   *concurrency.Mutex
	name    string
}

func (s *etcdSession) Acquire(ctx context.Context, c Claim) error {
	if s.mutex == nil || s.name != c.Resource {
		s.mutex, s.name = concurrency.NewMutex(s.session, "bench/"+c.Resource), c.Resource
	}
	if c.Wait > 0 {
		return s.mutex.Lock(ctx)
	}
	err := s.mutex.TryLock(ctx)
	if errors.Is(err, concurrency.ErrLocked) {
		return ErrBusy
	}
	return err
}

func (s *etcdSession) Release(ctx context.Context) error { return s.mutex.Unlock(ctx) }

func (s *etcdSession) Close() error { return s.session.Close() }

// EtcdJSON is etcd's lock service through its JSON gateway.
type EtcdJSON struct{ addr string }

// NewEtcdJSON returns a peer for the server at addr.
func NewEtcdJSON(addr string) *EtcdJSON { return &EtcdJSON{addr: addr} }

// Name returns the name in tables.
func (*EtcdJSON) Name() string { return "etcd-json" }

// Addrs returns the address as host:port.
func (e *EtcdJSON) Addrs() []string { return []string{e.addr} }

// Dialect returns the dialect of one client.
func (*EtcdJSON) Dialect() Dialect { return &gateway{} }

// Open connects, with an etcd lease for the worker.
func (e *EtcdJSON) Open(ctx context.Context) (Session, error) {
	return session(speak(ctx, e.addr, e.Dialect()))
}

// Close does nothing.
func (*EtcdJSON) Close() error { return nil }

// gateway is the dialect. Acquire always waits, because the gateway has no call that tries once.
type gateway struct {
	lease string
	key   string
	body  []byte
}

func (g *gateway) Setup(ctx context.Context, c *rawhttp.Conn) error {
	body := fmt.Appendf(nil, `{"TTL":%d}`, leaseSeconds)
	resp, err := c.Do(ctx, rawhttp.AppendJSON(nil, http.MethodPost, "/v3/lease/grant", "", body))
	if err != nil {
		return err
	}
	if err := expect(resp, http.StatusOK); err != nil {
		return err
	}
	var granted struct {
		ID string `json:"ID"`
	}
	if err := json.Unmarshal(resp.Body, &granted); err != nil {
		return err
	}
	g.lease = granted.ID
	return nil
}

func (g *gateway) Teardown(ctx context.Context, c *rawhttp.Conn) error {
	body := fmt.Appendf(nil, `{"ID":%q}`, g.lease)
	_, err := c.Do(ctx, rawhttp.AppendJSON(nil, http.MethodPost, "/v3/lease/revoke", "", body))
	return err
}

func (g *gateway) Acquire(buf []byte, c Claim) []byte {
	g.body = append(g.body[:0], `{"name":"`...)
	g.body = base64.StdEncoding.AppendEncode(g.body, []byte(c.Resource))
	g.body = append(g.body, `","lease":"`...)
	g.body = append(g.body, g.lease...)
	g.body = append(g.body, `"}`...)
	return rawhttp.AppendJSON(buf, http.MethodPost, "/v3/lock/lock", "", g.body)
}

func (g *gateway) Acquired(resp *rawhttp.Response) error {
	if err := expect(resp, http.StatusOK); err != nil {
		return err
	}
	var locked struct {
		Key string `json:"key"`
	}
	if err := json.Unmarshal(resp.Body, &locked); err != nil {
		return err
	}
	g.key = locked.Key
	return nil
}

func (g *gateway) Release(buf []byte) []byte {
	g.body = append(g.body[:0], `{"key":"`...)
	g.body = append(g.body, g.key...)
	g.body = append(g.body, `"}`...)
	return rawhttp.AppendJSON(buf, http.MethodPost, "/v3/lock/unlock", "", g.body)
}

func (*gateway) Released(resp *rawhttp.Response) error { return expect(resp, http.StatusOK) }
