package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// electTTL is how long a leader that died still counts as the leader.
const electTTL = 3 * time.Second

// These variables make this test's program a candidate.
const (
	candidateServers = "FENCELOCK_TEST_CANDIDATE"
	candidateName    = "FENCELOCK_TEST_CANDIDATE_NAME"
)

// candidate takes part in an election with client.Elect. While it leads, it prints its token and the time. It reads
// the time before it checks its context.
func candidate() {
	locks, err := client.New(strings.Split(os.Getenv(candidateServers), ","), client.WithHolder(os.Getenv(candidateName)))
	if err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test ends
		os.Exit(1)
	}()
	resign := make(chan os.Signal, 1)
	signal.Notify(resign, syscall.SIGUSR1)
	err = locks.Elect(context.Background(), "election", func(ctx context.Context, l *client.Lease) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			now := time.Now().UnixNano()
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fmt.Println(l.Token(), now)
			select {
			case <-tick.C:
			case <-resign:
				return nil
			}
		}
	}, client.TTL(electTTL))
	if err != nil {
		panic(err)
	}
}

// election has the processes of one election, and what a Watch reports of it.
type election struct {
	t       *testing.T
	servers []*process
	watched chan wire.Lock
	members map[string]*exec.Cmd // by holder

	mu    sync.Mutex
	terms map[int64]term // by token
}

// term is the first and the last time at which a leader believed that it led.
type term struct{ first, last int64 }

func newElection(t *testing.T) *election {
	t.Helper()
	return &election{
		t: t, servers: startServers(t, 2, testenv.StartRedisN(t, 3)), watched: make(chan wire.Lock, 100),
		members: make(map[string]*exec.Cmd), terms: make(map[int64]term),
	}
}

func (e *election) urls() string { return e.servers[0].url + "," + e.servers[1].url }

// watch follows the election through the server that is never stopped.
func (e *election) watch() {
	locks, err := client.New([]string{e.servers[1].url})
	if err != nil {
		e.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(e.t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for lock, err := range locks.Watch(ctx, "election") {
			if err != nil {
				e.t.Errorf("the watch: %v", err)
				return
			}
			e.watched <- lock.Wire()
		}
	})
	e.t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
}

// watchByCommand does the same with fencelock get --watch.
func (e *election) watchByCommand() {
	cmd := command(e.t, os.Environ(), "get", "election", "--watch", "-o", "json", "--url", e.servers[1].url)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			var lock wire.Lock
			if err := json.Unmarshal(lines.Bytes(), &lock); err != nil || lock.Resource != "election" {
				e.t.Errorf("%s: %v", lines.Text(), err)
				return
			}
			e.watched <- lock
		}
	})
	e.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		reading.Wait()
		if err := cmd.Wait(); err != nil {
			e.t.Errorf("get --watch ended with %v", err)
		}
	})
}

// stands starts a candidate, and notes its terms from its output.
func (e *election) stands(name string, cmd *exec.Cmd) {
	e.t.Helper()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	cmd.Stderr = &testenv.Buffer{}
	if err := cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	e.members[name] = cmd
	var reading sync.WaitGroup
	reading.Go(func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			e.leads(lines.Text())
		}
	})
	e.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		reading.Wait()
		_ = cmd.Wait()
	})
}

func (e *election) signal(name string, s syscall.Signal) {
	e.t.Helper()
	e.t.Logf("%s to %s", s, name)
	if err := e.members[name].Process.Signal(s); err != nil {
		e.t.Fatal(err)
	}
}

// other returns the only member that is not one of these.
func (e *election) other(names ...string) string {
	for name := range e.members {
		if !slices.Contains(names, name) {
			return name
		}
	}
	e.t.Fatal("there is no other")
	return ""
}

// led returns for how long the leader with this token believed that it led.
func (e *election) led(token int64) time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	return time.Duration(e.terms[token].last - e.terms[token].first)
}

func (e *election) leads(line string) {
	token, at, _ := strings.Cut(line, " ")
	n, errToken := strconv.ParseInt(token, 10, 64)
	now, errAt := strconv.ParseInt(at, 10, 64)
	if errToken != nil || errAt != nil {
		return // a line that a kill cut off
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, known := e.terms[n]; !known {
		e.terms[n] = term{first: now}
	}
	e.terms[n] = term{e.terms[n].first, now}
}

// next waits for the next leader that the watch reports, with a token above an earlier one.
func (e *election) next(before int64, within time.Duration) (holder string, token int64) {
	e.t.Helper()
	deadline := time.After(within)
	for {
		select {
		case lock := <-e.watched:
			if lock.Held && lock.FencingToken > before {
				return *lock.Holder, lock.FencingToken
			}
		case <-deadline:
			e.t.Fatalf("no new leader within %s", within)
		}
	}
}

// inOrder checks that each leader believed in its term only until the next leader's term began.
func (e *election) inOrder() {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	for token, a := range e.terms {
		for later, b := range e.terms {
			if later > token && b.first <= a.last {
				e.t.Errorf("the leader under token %d believed that it led for %s after the one under token %d began",
					token, time.Duration(a.last-b.first), later)
			}
		}
	}
}

// One process leads at a time, with rising tokens, whatever happens to leaders and servers, and a watch reports each
// change. It holds for client.Elect and for fencelock elect.
func TestElection(t *testing.T) {
	t.Parallel()
	t.Run("client", func(t *testing.T) {
		testenv.Long(t, "a leader of client.Elect, in a process of its own, that leads beside another")
		t.Parallel()
		testElection(t, (*election).watch, func(e *election, name string) *exec.Cmd {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			cmd.Env = []string{candidateServers + "=" + e.urls(), candidateName + "=" + name}
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			return cmd
		})
	})
	t.Run("command", func(t *testing.T) {
		t.Parallel()
		testElection(t, (*election).watchByCommand, func(e *election, name string) *exec.Cmd {
			return command(t, os.Environ(), "elect", "--url", e.urls(), "--holder", name, "--ttl", electTTL.String(),
				"election", "--", "sh", "-c", `while echo "$FENCING_TOKEN $(date +%s%N)"; do sleep 0.01; done`)
		})
	})
}

func testElection(t *testing.T, watch func(*election), candidate func(e *election, name string) *exec.Cmd) {
	t.Helper()
	const late = 8 * time.Second // of a busy machine
	e := newElection(t)
	watch(e)
	for _, name := range []string{"a", "b", "c", "d"} {
		e.stands(name, candidate(e, name))
	}
	first, token := e.next(0, 2*late)
	e.servers[1].awaitWaiting("election", 3)

	e.servers[0].Kill() // which the leader asks: it stays in office
	testenv.Eventually(t, 2*late, func() error {
		if led := e.led(token); led < 2*electTTL {
			return fmt.Errorf("%s has led for %s", first, led)
		}
		return nil
	})

	e.signal(first, syscall.SIGSTOP)
	second, token := e.next(token, electTTL+late)
	e.signal(first, syscall.SIGCONT) // it stands again

	e.signal(second, syscall.SIGKILL)
	third, token := e.next(token, electTTL+late)

	for i, resigns := range []string{third, e.other(first, second, third)} {
		e.servers[1].awaitWaiting("election", 2-i)
		e.signal(resigns, syscall.SIGUSR1)
		began := time.Now()
		_, token = e.next(token, late)
		if took := time.Since(began); took > electTTL/2 {
			t.Errorf("the leader after %s, who resigned, led after %s", resigns, took)
		}
	}
	e.inOrder()
}

// When its command ends, elect resigns and exits with the command's code. elect also ends if the command cannot be
// run, or the service refuses the request.
func TestElectExitCodes(t *testing.T) {
	t.Parallel()
	p := start(t)
	for args, want := range map[string]said{
		"elect -q r -- true":            {0, "", ""},
		"elect -q r -- sh -c exit␣75":   {75, "", ""}, // the command's own: no loss
		"elect -q r -- no-such-program": {cli.ExitNotFound, "", "fencelock: the command no-such-program was not found in PATH\n"},
		"elect -q --slots 2 r -- sh -c echo␣$FENCELOCK_RESOURCE|sed␣s/[12]$//": {0, "r#slot\n", ""},
	} {
		list := strings.Fields(args)
		for i := range list {
			list[i] = strings.ReplaceAll(list[i], "␣", " ")
		}
		if got := p.tool("", nil, list...); got != want {
			t.Errorf("%s: %+v, want %+v", args, got, want)
		}
	}
	p.tool("", nil, "elect", "a", "b", "--", "true").wants(t, "two resources", cli.ExitUsage, "", "one resource")
	p.tool("", nil, "elect", "r", "--").wants(t, "no command", cli.ExitUsage, "", "with --: use")
	p.tool("", nil, "elect", "--ttl", "2h", "r", "--", "true").wants(t, "refused", cli.ExitUsage, "", "--ttl must be from 100ms to 1m0s")
	p.tool("", nil, "elect", "-n", "r", "--", "true").wants(t, "a flag of run", cli.ExitUsage, "", "no flag")
}

// A candidate waits through an outage, says for what it waits, and ends on a signal.
func TestElectOutlivesAnOutage(t *testing.T) {
	testenv.Long(t, "a leader that an outage of the service ends")
	t.Parallel()
	cmd := command(t, os.Environ(), "elect", "--url", "http://127.0.0.1:1", "--patience", "0", "r", "--", "true")
	stderr := &testenv.Buffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() error {
		if strings.Count(stderr.String(), "is a candidate again") < 2 {
			return fmt.Errorf("it says %q", stderr)
		}
		return nil
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != cli.ExitSignalled+int(syscall.SIGTERM) {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}
