package api_test

import (
	"context"
	"io"
	"net/url"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/storage/pgstore"
)

// TestServiceOnPostgres is the suite over two servers that share a database. Calls take
// turns, so that every lease is used through both.
func TestServiceOnPostgres(t *testing.T) {
	testenv.Long(t, "a service that does otherwise on a Postgres whose store passes storetest")
	pg := testenv.StartPostgres(t)
	var databases atomic.Int64
	overTwoServers(t, func(t *testing.T) func() *replica.Node {
		t.Helper()
		database := newDatabase(t, pg.URL(), "suite"+strconv.FormatInt(databases.Add(1), 10))
		return func() *replica.Node {
			store, err := pgstore.Open(t.Context(), database, pgstore.Options{Timeout: 20 * time.Second, Patience: time.Minute})
			return nodeOver(t, store, err, true)
		}
	})
}

// overTwoServers is the suite over two servers with a node each, of which place returns the one that opens them.
func overTwoServers(t *testing.T, place func(t *testing.T) (open func() *replica.Node)) {
	t.Helper()
	var lines []string
	for _, caller := range servicetest.Callers {
		lines = append(lines, line(caller, "admin=*"))
	}
	servicetest.Run(t, func(t *testing.T) lockcore.Service {
		t.Helper()
		open := place(t)
		var both [2]remote
		for i := range both {
			both[i].s = serveNode(t, open(), withAccess(t, lines...))
			both[i].Service = both[i].s.handler.Service
		}
		return &turns{Service: both[0].Service, both: both}
	})
}

// nodeOver is a node over a store that was opened with this error.
func nodeOver(t *testing.T, store interface {
	replica.Store
	io.Closer
}, err error, bootstrap bool,
) *replica.Node {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n, err := replica.New(t.Context(), "shared", store, replica.Options{Bootstrap: bootstrap})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func newDatabase(t *testing.T, admin, name string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), admin)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `CREATE DATABASE `+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(admin)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return u.String()
}

// turns is a lockcore.Service over two servers, which take turns.
type turns struct {
	lockcore.Service
	both [2]remote
	n    atomic.Int64
}

func (s *turns) next() *remote { return &s.both[s.n.Add(1)%2] }

func (s *turns) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	return s.next().Acquire(ctx, req)
}

func (s *turns) Cancel(ctx context.Context, req lockcore.Request) ([]lockcore.LeasePart, error) {
	return s.next().Cancel(ctx, req)
}

func (s *turns) Open(ctx context.Context, caller lockcore.Caller, id string) (lockcore.OpenedLease, error) {
	return s.next().Open(ctx, caller, id)
}

func (s *turns) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	return s.next().Inspect(ctx, resource)
}

func (s *turns) List(ctx context.Context, req lockcore.ListRequest) (lockcore.LockPage, error) {
	return s.next().List(ctx, req)
}

func (s *turns) Break(ctx context.Context, resource string, token fencing.Token) error {
	return s.next().Break(ctx, resource, token)
}
