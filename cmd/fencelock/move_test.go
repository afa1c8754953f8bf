package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// place is an engine where the locks can be: its setting, and how docs/how-to/move.md empties it.
type place struct {
	setting string
	empty   func()
}

func postgresPlace(t *testing.T) place {
	t.Helper()
	url := testenv.StartPostgres(t).OwnerURL()
	return place{"FENCELOCK_STORE=" + url, func() { sqlOn(t, url, `DROP SCHEMA fencelock CASCADE`) }}
}

func filePlace(t *testing.T) place {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fencelock.db")
	return place{"FENCELOCK_DATA=" + path, func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}}
}

func redisPlace(t *testing.T) place {
	t.Helper()
	nodes := testenv.StartRedisN(t, 3)
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Addr())
	}
	return place{"FENCELOCK_REDIS_ADDRS=" + strings.Join(addrs, ","), func() {
		for _, n := range nodes {
			if err := n.Client().FlushDB(t.Context()).Err(); err != nil {
				t.Error(err)
			}
		}
	}}
}

func zookeeperPlace(t *testing.T) place {
	t.Helper()
	addr, path := testenv.SharedZooKeeper(t), "/move"+strconv.FormatInt(time.Now().UnixNano(), 36)
	return place{"FENCELOCK_STORE=zookeeper://" + addr + path, func() {
		conn := zkConn(t, addr, "")
		if err := deleteAll(conn, path); err != nil {
			t.Error(err)
		}
	}}
}

func deleteAll(conn *zk.Conn, path string) error {
	names, _, err := conn.Children(path)
	for _, name := range names {
		if err == nil {
			err = deleteAll(conn, path+"/"+name)
		}
	}
	if err == nil {
		err = conn.Delete(path, -1)
	}
	return err
}

func etcdPlace(t *testing.T) place {
	t.Helper()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	return place{"FENCELOCK_STORE=" + etcd.URL("locks"), func() { etcd.Ctl("del", "--prefix", "/locks/") }}
}

// held is a lease with the time for which its holder may use it.
type held struct {
	token       int64
	from, until time.Time
}

// movers are clients of one address, behind which the servers change. They take turns on one resource, and let every
// third lease expire.
type movers struct {
	p       *process // with the address
	running sync.WaitGroup

	mu   sync.Mutex
	held []held
}

func (m *movers) start(ctx context.Context) {
	for range 4 {
		m.running.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				m.turn(ctx, i%3 == 0)
			}
		})
	}
}

func (m *movers) turn(ctx context.Context, keep bool) {
	var lease wire.Lease
	sent := time.Now()
	resp, err := m.p.try(ctx, &lease, "POST", "/locks", `{"resource":"moved","ttl_ms":2000,"wait_ms":1000}`)
	if err != nil || resp.StatusCode != http.StatusCreated {
		pauseFor(ctx, 10*time.Millisecond)
		return
	}
	h := held{token: lease.FencingToken, from: time.Now()}
	valid := time.Duration(lease.ValidityMS) * time.Millisecond
	if keep {
		h.until = sent.Add(valid)
	} else {
		h.until = time.Now()
		_, _ = m.p.try(ctx, nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
	}
	m.mu.Lock()
	m.held = append(m.held, h)
	m.mu.Unlock()
}

func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// granted waits until n more leases were granted.
func (m *movers) granted(more int) {
	m.p.t.Helper()
	count := func() int { m.mu.Lock(); defer m.mu.Unlock(); return len(m.held) }
	want := count() + more
	testenv.Eventually(m.p.t, time.Minute, func() error {
		if n := count(); n < want {
			return fmt.Errorf("%d leases, want %d", n, want)
		}
		return nil
	})
}

// judge checks that no two leases overlapped, and that each token was above the earlier ones.
func (m *movers) judge() {
	m.p.t.Helper()
	slices.SortFunc(m.held, func(a, b held) int { return a.from.Compare(b.from) })
	for i, h := range m.held[1:] {
		before := m.held[i]
		if h.token <= before.token {
			m.p.t.Errorf("token %d after %d", h.token, before.token)
		}
		if h.from.Before(before.until) {
			m.p.t.Errorf("token %d was granted %s before the lease of %d ended", h.token, before.until.Sub(h.from), before.token)
		}
	}
}

// The locks move to another engine and back by the steps of docs/how-to/move.md, while clients want them: tokens
// rise, no two leases are valid at once, and the guard refuses earlier tokens.
func TestMoveBetweenEngines(t *testing.T) {
	t.Parallel()
	move(t, [2]place{filePlace(t), postgresPlace(t)})
}

func TestMoveBetweenOtherEngines(t *testing.T) {
	testenv.Long(t, "an engine whose locks cannot be moved, or not back")
	t.Parallel()
	for name, places := range map[string][2]func(*testing.T) place{
		"Redis and Postgres":     {redisPlace, postgresPlace},
		"Postgres and ZooKeeper": {postgresPlace, zookeeperPlace},
		"etcd and Postgres":      {etcdPlace, postgresPlace},
		"ZooKeeper and Redis":    {zookeeperPlace, redisPlace},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			move(t, [2]place{places[0](t), places[1](t)})
		})
	}
}

func move(t *testing.T, places [2]place) {
	t.Helper()
	const maxTTL = 2 * time.Second
	common := []string{"FENCELOCK_DATABASE_URL=" + testenv.Postgres(t).OwnerURL(), "FENCELOCK_MAX_TTL=" + maxTTL.String(), "FENCELOCK_BOOTSTRAP=new"}
	server := start(t, append(common, places[0].setting)...)
	line := testenv.StartProxy(t, strings.TrimPrefix(server.url, "http://"))
	m := &movers{p: &process{t: t, url: "http://" + line.Addr(), client: &http.Client{Transport: &http.Transport{}}}}
	ctx, cancel := context.WithCancel(t.Context())
	m.start(ctx)
	defer m.running.Wait()
	defer cancel()

	put := func(token int64, status int) {
		t.Helper()
		server.wants(server.decided("PUT", "/guarded/written", `1`, fmt.Sprint("Fencing-Token: ", token)), status)
	}
	var last int64
	for step, place := range []place{places[0], places[1], places[0]} {
		if step > 0 {
			server.Signal(syscall.SIGTERM)
			server.exit()
			pauseFor(ctx, maxTTL)
			if step == 2 {
				place.empty()
			}
			server = start(t, append(common, place.setting)...)
			line.Retarget(strings.TrimPrefix(server.url, "http://"))
			put(last, http.StatusOK) // no client has claimed it under a larger token yet
		}
		var lease wire.Lease
		testenv.Eventually(t, time.Minute, func() error { // a busy machine may be late
			resp, err := server.try(t.Context(), &lease, "POST", "/locks", `{"resource":"written","ttl_ms":1000}`)
			if err == nil && resp.StatusCode != http.StatusCreated {
				err = fmt.Errorf("it answers %s", resp.Status)
			}
			return err
		})
		if lease.FencingToken <= last {
			t.Fatalf("token %d after %d", lease.FencingToken, last)
		}
		put(lease.FencingToken, http.StatusOK)
		if last > 0 {
			put(last, http.StatusPreconditionFailed)
		}
		last = lease.FencingToken
		_, _ = server.try(t.Context(), nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID) // unless it has expired
		m.granted(10)
	}
	cancel()
	m.running.Wait()
	m.judge()
	t.Logf("%d leases", len(m.held))
}
