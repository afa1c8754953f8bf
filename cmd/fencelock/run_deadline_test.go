package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

var (
	roundsFlag = flag.Int("rounds", 2, "how often a command's lease is lost in each way, to see that it dies in time")
	// A tenth of it is the time that a busy machine has to kill in.
	roundTTL = flag.Duration("round-ttl", 3*time.Second, "the leases of these rounds")
)

// stubbornScript leaves two processes in the group, which both ignore SIGTERM. A process that is alive has the FIFO
// open.
const stubbornScript = `exec 9>"$FIFO"; trap "" TERM; sleep 600 & echo here >&9; sleep 600`

// TestCommandIsDeadBeforeTheNextGrant: a command loses its lease in each of several ways, while another caller waits
// in the queue for the lock. When that caller gets the lock, the whole process group of the command must be dead. All
// ways are tried at the same time, because most of each is waiting.
func TestCommandIsDeadBeforeTheNextGrant(t *testing.T) {
	t.Run("service frozen", func(t *testing.T) {
		t.Parallel()
		nodes := testenv.StartRedisN(t, 1)
		servers := startServers(t, 2, nodes)
		r := rounds{t: t, server: servers[0].url, other: servers[1], code: cli.ExitLost}
		r.fault = func(*exec.Cmd) { servers[0].Freeze() }
		r.heal = func() { servers[0].Thaw() }
		r.run(*roundsFlag)
	})
	for name, cut := range map[string]testenv.Cut{"network cut": testenv.CutBlackhole, "network refused": testenv.CutRefuse} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			proxy := testenv.StartProxy(t, strings.TrimPrefix(server.url, "http://"))
			r := rounds{t: t, server: "http://" + proxy.Addr(), other: server, code: cli.ExitLost}
			r.fault = func(*exec.Cmd) { proxy.Cut(cut) }
			r.heal = func() { proxy.Cut(testenv.CutNone) }
			n := *roundsFlag
			if cut == testenv.CutRefuse {
				n = (n + 4) / 5
			}
			r.run(n)
		})
	}
	for name, s := range map[string]syscall.Signal{"fencelock run stopped": syscall.SIGSTOP, "fencelock run killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := start(t)
			r := rounds{t: t, server: server.url, other: server, code: cli.ExitLost, heal: func() {}}
			if s == syscall.SIGKILL {
				r.code = -1
			}
			r.fault = func(cmd *exec.Cmd) { _ = cmd.Process.Signal(s) }
			r.run((*roundsFlag + 4) / 5)
		})
	}
}

// rounds loses leases in one way.
type rounds struct {
	t      *testing.T
	server string              // what the command's fencelock run talks to
	other  *process            // where the next one waits
	fault  func(run *exec.Cmd) // from then on the lease cannot be kept
	heal   func()
	code   int // what fencelock run ends with
}

func (r rounds) run(n int) {
	least, sum := time.Hour, time.Duration(0)
	for i := range n {
		margin := r.round(i)
		if margin <= 0 {
			r.t.Errorf("round %d: the next one had the lock %s before the command was dead", i+1, -margin)
		}
		least, sum = min(least, margin), sum+margin
	}
	r.t.Logf("%d rounds with a TTL of %s: the group was dead at least %s before the next grant, %s on average",
		n, *roundTTL, least.Round(time.Millisecond), (sum / time.Duration(n)).Round(time.Millisecond))
}

// round loses one lease, and returns how long before the next grant the process group was dead.
func (r rounds) round(i int) time.Duration {
	r.t.Helper()
	resource := fmt.Sprintf("rounds/%d", i)
	fifo := filepath.Join(r.t.TempDir(), "alive")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		r.t.Fatal(err)
	}
	cmd := command(r.t, append(os.Environ(), "FIFO="+fifo), "run", "--url", r.server, "--ttl", roundTTL.String(), "--holder", "first",
		resource, "--", "sh", "-c", stubbornScript)
	cmd.Stderr = &testenv.Buffer{}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	dead := r.alive(fifo, cmd)
	next := r.other.waitsFor(r.t.Context(), resource, "second", time.Minute, 10*time.Second)
	r.other.awaitWaiting(resource, 1)
	moment := rand.New(rand.NewPCG(1, uint64(i)))                    // the same in every run
	<-time.After(time.Duration(moment.Int64N(int64(*roundTTL / 3)))) // anywhere between two extensions
	r.fault(cmd)

	got, ends := r.await(resource, next)
	granted := r.grantedAt(resource, got, ends)
	r.heal()
	var diedAt time.Time
	select {
	case diedAt = <-dead:
	case <-time.After(10 * time.Second):
		r.t.Fatal("the group does not die")
	}
	_ = cmd.Process.Signal(syscall.SIGCONT)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != r.code {
		r.t.Errorf("exit code %d, want %d: %s", code, r.code, cmd.Stderr)
	}
	r.other.wants(r.other.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+got.lease.LeaseID), 204)
	return granted.Sub(diedAt)
}

// alive returns when the command runs. The channel gets the time at which the last process with the FIFO open ended.
func (r rounds) alive(fifo string, cmd *exec.Cmd) <-chan time.Time {
	r.t.Helper()
	here, dead := make(chan error, 1), make(chan time.Time, 1)
	go func() {
		file, err := os.Open(fifo)
		if err != nil {
			here <- err
			return
		}
		defer func() { _ = file.Close() }()
		_, err = io.ReadFull(file, make([]byte, len("here\n")))
		here <- err
		_, _ = file.Read(make([]byte, 1)) // until nobody has it open
		dead <- time.Now()
	}()
	select {
	case err := <-here:
		if err != nil {
			r.t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		r.t.Fatalf("the command does not start: %s", cmd.Stderr)
	}
	return dead
}

// await waits until the next caller has the lock. It also returns the earliest time at which the earlier lease ends:
// what the service says is left of it, added to the time before the service was asked.
func (r rounds) await(resource string, next <-chan turn) (got turn, ends time.Time) {
	r.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case got = <-next:
			return got, ends
		case <-tick.C:
		}
		var lock wire.Lock
		asked := time.Now()
		_, err := r.other.try(r.t.Context(), &lock, "GET", "/locks/"+resource, "")
		if err == nil && lock.Held && *lock.Holder == "first" {
			ends = asked.Add(time.Duration(*lock.RemainingMS-1) * time.Millisecond) // it is rounded up
		}
	}
}

// grantedAt returns the earliest time at which the next caller got the lock: not before the earlier lease ended, and
// not before the service says that it began to grant.
func (r rounds) grantedAt(resource string, got turn, ends time.Time) time.Time {
	r.t.Helper()
	if got.err != nil || got.status != 201 {
		r.t.Fatalf("the next one got %d, %v", got.status, got.err)
	}
	var lock wire.Lock
	asked := time.Now()
	r.other.wants(r.other.ask(&lock, "GET", "/locks/"+resource, ""), 200)
	if lock.HeldMS == nil || lock.FencingToken != got.lease.FencingToken {
		r.t.Fatalf("lock %+v", lock)
	}
	began := asked.Add(-time.Duration(*lock.HeldMS+1) * time.Millisecond) // it is rounded down
	if began.Before(ends) {
		began = ends
	}
	if began.After(got.at) {
		return got.at
	}
	return began
}
