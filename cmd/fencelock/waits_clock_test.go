package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// frozenEngine is a server with a function that stops its engine; nil if the engine has no process of its own.
type frozenEngine struct {
	*process
	freeze, thaw func()
}

// engines start a server on each engine. The node time limit is so long that, on any machine, a response that waits
// for the node comes much later than one that does not.
func engines() map[string]func(t *testing.T) frozenEngine {
	const patient = "FENCELOCK_NODE_TIMEOUT=15s"
	return map[string]func(t *testing.T) frozenEngine{
		"bolt": func(t *testing.T) frozenEngine {
			t.Helper()
			return frozenEngine{process: start(t, "FENCELOCK_DATA="+filepath.Join(t.TempDir(), "fencelock.db"), patient)}
		},
		"redis": func(t *testing.T) frozenEngine {
			t.Helper()
			nodes := testenv.StartRedisN(t, 3)
			addrs := make([]string, len(nodes))
			for i, n := range nodes {
				addrs[i] = n.Addr()
			}
			all := func(do func(*testenv.Redis)) func() {
				return func() {
					for _, n := range nodes {
						do(n)
					}
				}
			}
			p := start(t, "FENCELOCK_REDIS_ADDRS="+strings.Join(addrs, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_MAX_TTL=150s", patient)
			return frozenEngine{p, all((*testenv.Redis).Freeze), all((*testenv.Redis).Thaw)}
		},
		"postgres": func(t *testing.T) frozenEngine {
			t.Helper()
			pg := testenv.StartPostgres(t)
			return frozenEngine{start(t, "FENCELOCK_STORE="+pg.URL(), patient), pg.Freeze, pg.Thaw}
		},
		"etcd": func(t *testing.T) frozenEngine {
			t.Helper()
			etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
			member := etcd.Members[0]
			return frozenEngine{start(t, "FENCELOCK_STORE="+etcd.URL("locks"), patient), member.Freeze, member.Thaw}
		},
		"zookeeper": func(t *testing.T) frozenEngine {
			t.Helper()
			server := testenv.StartZooKeeper(t, 1)[0]
			return frozenEngine{start(t, "FENCELOCK_STORE=zookeeper://"+server.Addr()+"/clock", patient), server.Freeze, server.Thaw}
		},
	}
}

// A wait whose time is over gets its response by the clock, on every engine: while the engine is stopped, and at once
// after the server itself was stopped and continues.
func TestWaitsEndByTheClock(t *testing.T) {
	testenv.Long(t, "a response to a wait that waits for the engine")
	for name, open := range engines() {
		t.Run(name, func(t *testing.T) {
			machine := testenv.MeasureLateness(t)
			e := open(t)
			if e.freeze != nil {
				late := e.endsWaits(e.freeze, e.thaw, 0)
				e.judge("the engine is stopped", late, machine)
			}
			load := startLoad(e.process, 4) // so that the server stops within an operation
			load.back(time.Now())
			late := e.endsWaits(e.Freeze, e.Thaw, 2*time.Second)
			load.end()
			e.judge("the server was stopped", late, machine)
		})
	}
}

// judge compares a delay with a third of a node's time limit.
func (e *frozenEngine) judge(what string, late time.Duration, machine *testenv.Lateness) {
	e.t.Helper()
	e.t.Logf("%s: the last response came %s late", what, late.Round(time.Millisecond))
	if late > 5*time.Second+2*machine.Longest() {
		e.t.Errorf("%s: a response came %s late; the machine was late by %s", what, late, machine.Longest())
	}
}

// endsWaits stops something while requests wait for held resources, until all of them should have ended, or for
// `lasts`. It returns how much later than the end of its wait (or of the server's stop) the latest response came.
func (e *frozenEngine) endsWaits(stop, goOn func(), lasts time.Duration) (late time.Duration) {
	e.t.Helper()
	const each = 250 * time.Millisecond
	var ends []time.Time
	var turns []<-chan turn
	for i := range 12 {
		resource := fmt.Sprintf("%s/%d/%d", e.t.Name(), lasts, i%4)
		if i < 4 {
			e.acquire(fmt.Sprintf(`{"resource":%q,"ttl_ms":60000}`, resource))
		}
		wait := time.Second + time.Duration(i+1)*each
		ends = append(ends, time.Now().Add(wait))
		turns = append(turns, e.waits(e.t.Context(), resource, "waiter", wait))
	}
	time.Sleep(time.Second)
	stop()
	if lasts > 0 {
		time.Sleep(lasts)
		goOn()
	} else {
		defer goOn()
	}
	resumed := time.Now()
	for i, response := range turns {
		got := <-response
		if got.err != nil || got.status != http.StatusConflict && got.status != http.StatusServiceUnavailable {
			e.t.Errorf("status %d %s, %v", got.status, got.refusal.Type, got.err)
		}
		from := ends[i]
		if lasts > 0 && from.Before(resumed) {
			from = resumed
		}
		late = max(late, got.at.Sub(from))
	}
	return late
}
