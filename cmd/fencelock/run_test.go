package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/client"
	"github.com/fencelock/fencelock/internal/testenv"
)

// cron mails every output: a run that is skipped prints nothing, and with -q fencelock itself prints nothing at all.
func TestQuiet(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.acquire(`{"resource":"taken","holder":"somebody","ttl_ms":60000}`)
	path := testenv.Program(t)
	for args, want := range map[string]said{
		"run -n -E 0 taken -- false":                             {0, "", ""},
		"acquire -n -E 0 taken":                                  {0, "", ""},
		"run -q -n taken -- false":                               {cli.ExitHeld, "", ""},
		"run -q -w 10ms -E 0 taken -- false":                     {0, "", ""},
		"acquire -q -n -E 9 taken":                               {9, "", ""},
		"run -q --ttl 2h r -- true":                              {cli.ExitUsage, "", ""}, // the service's refusal
		"run -q own -- " + path + " break --yes --any own":       {cli.ExitLost, "own is broken\n", ""},
		"run -q r -- sh -c echo␣out;echo␣err>&2":                 {0, "out\n", "err\n"}, // the command's own
		"run -q --url http://127.0.0.1:1 --patience 0 r -- true": {cli.ExitUnavailable, "", ""},
	} {
		list := strings.Fields(args)
		for i := range list {
			list[i] = strings.ReplaceAll(list[i], "␣", " ")
		}
		if got := p.tool("", nil, list...); got != want {
			t.Errorf("%s: %+v, want %+v", args, got, want)
		}
	}
	p.tool("", nil, "run", "-q", "-E", "256", "r", "--", "true").wants(t, "wrong usage", cli.ExitUsage, "", "-E 256")
	p.tool("", nil, "run", "-w", "10ms", "-E", "0", "taken", "--", "true").wants(t, "a wait in vain", 0, "", "taken is held")
}

// run announces a maximum hold, explains its end, and reaches it without many extends shortly before.
func TestRunReachesItsLongestHold(t *testing.T) {
	t.Parallel()
	p := start(t)
	got := p.tool("", nil, "run", "--ttl", "4s", "--max-hold", "8s", "r", "--", "sleep", "60")
	got.wants(t, "a maximum hold time", cli.ExitLost, "", "the lease of r reaches its maximum hold time")
	got.wants(t, "a maximum hold time", cli.ExitLost, "", "lost the lease of r: it has reached its maximum hold time (max_hold_ms, or FENCELOCK_MAX_HOLD)")
	const most = 10 // every third of a TTL
	extended := regexp.MustCompile(`fencelock_extensions_total{outcome="granted"} (\d+)`).FindStringSubmatch(p.scrape())
	if n, err := strconv.Atoi(extended[1]); err != nil || n < 1 || n > most {
		t.Errorf("%s extensions", extended[1])
	}
	if left := p.tool("", nil, "acquire", "--max-hold", "45s", "other"); !strings.Contains(left.out, `"max_hold_remaining_ms": 4`) {
		t.Errorf("acquire with a longest hold: %+v", left)
	}
	p.tool("", nil, "run", "--ttl", "30s", "--max-hold", "1s", "r", "--", "true").wants(t, "below the TTL", cli.ExitUsage, "", "--max-hold 1s must be")
}

// With --min-hold a short job runs once on several hosts whose clocks differ. The lock is held no longer than that.
func TestRunAtLeast(t *testing.T) {
	t.Parallel()
	p := start(t)
	tick := func(resource string, ran string) {
		t.Helper()
		p.tool("", nil, "run", "-n", "-E", "0", "--ttl", "6s", "--min-hold", "5s", resource, "--", "echo", "ran").wants(t, resource, 0, ran, "")
	}
	tick("cron/a", "ran")
	if again := p.tool("", nil, "run", "-n", "-E", "0", "cron/a", "--", "echo", "ran"); again != (said{}) {
		t.Errorf("a second host's tick: %+v", again)
	}
	p.tool("", nil, "run", "--wait", "20s", "cron/a", "--", "echo", "ran").wants(t, "the next tick", 0, "ran", "")
	p.tool("", nil, "run", "--ttl", "1s", "--min-hold", "2s", "r", "--", "true").wants(t, "above the TTL", cli.ExitUsage, "", "--min-hold 2s must be")
	p.tool("", nil, "run", "--min-hold", "-1s", "r", "--", "true").wants(t, "negative", cli.ExitUsage, "", "--min-hold")
}

func TestRunExitCodes(t *testing.T) {
	t.Parallel()
	p := start(t)
	taken := p.acquire(`{"resource":"taken","holder":"somebody","ttl_ms":60000}`)
	notExecutable := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(notExecutable, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args        string
		code        int
		out, errOut string
	}{
		{"run r -- true", 0, "", ""},
		{"run r -- sh -c exit␣7", 7, "", ""},
		{"run r -- sh -c kill␣-KILL␣$$", 137, "", ""},
		{"run r -- sh -c kill␣-TERM␣$$", 143, "", ""},
		{"run r -- echo -n x --ttl", 0, "x --ttl", ""}, // what follows -- is the command's
		{"run r -- no-such-program", 127, "", "the command no-such-program was not found in PATH"},
		{"run r -- " + notExecutable, 126, "", "cannot be run"},
		{"run -n taken -- true", cli.ExitHeld, "", "taken is held by somebody"},
		{"run --wait 10ms taken -- true", cli.ExitHeld, "", "taken is held by somebody"},
		{"run -n -E 3 taken -- false", 3, "", "taken is held by somebody"},
		{"run --no-wait --conflict-exit-code 99 taken -- true", 99, "", ""},
		{"run --url http://127.0.0.1:1 --patience 0 r -- true", 69, "", "no server responds"},
		{"run r true", 2, "", "with --: use"},
		{"run -- true", 2, "", "with --: use"},
		{"run r --", 2, "", "with --: use"},
		{"run -n --wait 1s r -- true", 2, "", "--no-wait and --wait cannot be given together"},
		{"run --grace 20s --ttl 30s r -- true", 2, "", "at most 12s"},
		{"run --grace 20s r -- true", 2, "", "at most 12s"}, // known only from the server
		{"run --ttl 2h r -- true", 2, "", "--ttl must be from 100ms to 1m0s"},
		{"run --metadata {x r -- true", 2, "", "--metadata"},
		{"run -E 256 r -- true", 2, "", "-E 256"},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "␣", " ")
		}
		p.tool("", nil, args...).wants(t, c.args, c.code, c.out, c.errOut)
	}
	p.release(taken)
	for _, r := range []string{"r", "taken"} {
		var lock wire.Lock
		if p.ask(&lock, "GET", "/locks/"+r, ""); lock.Held {
			t.Errorf("%s is still held", r)
		}
	}
}

// The command gets the token, the lease, and its standard input.
func TestRunPassesOn(t *testing.T) {
	t.Parallel()
	p := start(t)
	const script = `echo "token $FENCING_TOKEN of $FENCELOCK_RESOURCE"; test -n "$FENCELOCK_LEASE_ID" && echo lease; cat; echo oops >&2`
	got := p.tool("standard input", []string{"FENCING_TOKEN=1"}, "run", "a b/it's", "--", "sh", "-c", script)
	got.wants(t, "run", 0, "of a b/it's\nlease\nstandard input", "oops")
	if strings.Contains(got.out, "token 1 ") {
		t.Error("the token is the one from outside:", got.out)
	}
}

// A run inside a run of the same resource joins its lease, and does not end it.
func TestRunInsideRun(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := testenv.Program(t)
	got := p.tool("", []string{"PROGRAM=" + path}, "run", "r", "--", "sh", "-c",
		`"$PROGRAM" run -n r -- sh -c 'echo inner $FENCING_TOKEN'; "$PROGRAM" get r | grep -q holder && echo outer $FENCING_TOKEN`)
	got.wants(t, "run in run", 0, "inner ", "")
	tokens := strings.Fields(got.out)
	if len(tokens) != 4 || tokens[1] != tokens[3] {
		t.Errorf("%q, %q", got.out, got.errOut)
	}
}

// A run that joined a lease ends its command when the outer run ends: no command works under a lease that was
// released.
func TestJoinedRunEndsWithTheLease(t *testing.T) {
	t.Parallel()
	p := start(t)
	lease := p.acquire(`{"resource":"r","ttl_ms":3000}`)
	env := []string{"FENCELOCK_RESOURCE=r", "FENCELOCK_LEASE_ID=" + lease.LeaseID}
	cmd, out := p.background(env, "run", "r", "--", "sh", "-c", `echo "here with $FENCING_TOKEN"; exec sleep 60`)
	if want := fmt.Sprintf("here with %d\n", lease.FencingToken); !strings.Contains(out.String(), want) {
		t.Errorf("%q, want %q", out.String(), want)
	}
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNoContent)
	exits(t, cmd, cli.ExitLost, out, "lost the lease of r")
	p.tool("", env, "run", "r", "--", "true").wants(t, "joining a lease that has ended", cli.ExitLost, "", "lease")
}

func TestRunPassesSignals(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		script := fmt.Sprintf(`trap 'echo got; exit 42' %d; echo here; while :; do sleep 0.02; done`, int(s))
		cmd, out := p.background(nil, "run", "r", "--", "sh", "-c", script)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		exits(t, cmd, 42, out, "got")
	}
}

// Ctrl-C in the queue ends the wait, and no ticket stays in the queue.
func TestRunInterruptedInLine(t *testing.T) {
	t.Parallel()
	p := start(t)
	lease := p.acquire(`{"resource":"r","ttl_ms":60000}`)
	for s, code := range map[syscall.Signal]int{syscall.SIGINT: 130, syscall.SIGTERM: 143} {
		cmd := command(t, []string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + p.url}, "run", "r", "--", "true")
		out := &testenv.Buffer{}
		cmd.Stderr = out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		p.awaitWaiting("r", 1)
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		exits(t, cmd, code, out, "")
		p.awaitWaiting("r", 0)
	}
	p.release(lease)
}

// Processes that the command leaves in its group are ended before the lock is released.
func TestRunEndsWhatIsLeft(t *testing.T) {
	t.Parallel()
	p := start(t)
	mark := filepath.Join(t.TempDir(), "mark")
	begun := time.Now()
	got := p.tool("", []string{"MARK=" + mark}, "run", "--ttl", "3s", "r", "--", "sh", "-c",
		`(trap 'echo told >"$MARK"; exit' TERM; while :; do sleep 0.02; done) & sh -c 'trap "" TERM; sleep 300' & exit 3`)
	got.wants(t, "run", 3, "", "the processes that it left running are ended")
	if text, err := os.ReadFile(mark); err != nil || string(text) != "told\n" || time.Since(begun) > time.Minute {
		t.Errorf("%q, %v after %s", text, err, time.Since(begun))
	}
}

// When an administrator breaks a lock, run treats the lease as lost: it sends SIGTERM first, and exits with 75
// whatever code the command exits with.
func TestRunAfterABreak(t *testing.T) {
	t.Parallel()
	p := start(t)
	cmd, out := p.background(nil, "run", "--ttl", "3s", "r", "--", "sh", "-c", `trap 'echo told; exit 0' TERM; echo here; while :; do sleep 0.02; done`)
	p.breaks("r")
	exits(t, cmd, cli.ExitLost, out, "told")
	if !strings.Contains(out.String(), "lost the lease of r") {
		t.Errorf("it does not say why: %s", out)
	}
	// The command ends after the break, and before anybody has noticed.
	broken := filepath.Join(t.TempDir(), "broken")
	cmd, out = p.background(nil, "run", "r", "--", "sh", "-c", `echo here; until [ -e "$0" ]; do sleep 0.02; done`, broken)
	p.breaks("r")
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exits(t, cmd, cli.ExitLost, out, "broken")
}

// A lease lives through a restart of the only server, and through the death of the
// one of two that it was taken from.
func TestRunOutlivesServers(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 3)
	servers := startServers(t, 2, nodes)
	proxy := testenv.StartProxy(t, strings.TrimPrefix(servers[0].url, "http://"))
	alone := "http://" + proxy.Addr()
	both := servers[0].url + "," + servers[1].url
	const script = `echo here; read line; echo "done $FENCING_TOKEN"`
	type job struct {
		cmd *exec.Cmd
		out *testenv.Buffer
		in  *os.File
	}
	var jobs []job
	for resource, url := range map[string]string{"restart": alone, "failover": both} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.Close() })
		cmd := command(t, []string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + url}, "run", "--ttl", "10s", resource, "--", "sh", "-c", script)
		j := job{cmd, &testenv.Buffer{}, w}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = r, j.out, j.out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		_ = r.Close()
		jobs = append(jobs, j)
		servers[1].until("the command runs", func() bool { return strings.Contains(j.out.String(), "here") })
	}
	before := map[string]wire.Lock{}
	see := func(resource string) (lock wire.Lock) {
		servers[1].wants(servers[1].ask(&lock, "GET", "/locks/"+resource, ""), 200)
		return lock
	}
	for _, r := range []string{"restart", "failover"} {
		before[r] = see(r)
	}
	servers[0].Kill()
	again := start(t, redisAddrs(nodes), "FENCELOCK_NODE_DOWN_AFTER=3s")
	proxy.Retarget(strings.TrimPrefix(again.url, "http://"))
	for _, r := range []string{"restart", "failover"} {
		testenv.Eventually(t, 40*time.Second, func() error { // longer than the TTL: it was extended since
			if now := see(r); !now.Held || now.FencingToken != before[r].FencingToken || *now.HeldMS < 10_500 {
				return fmt.Errorf("%+v", now)
			}
			return nil
		})
	}
	for _, j := range jobs {
		_, _ = j.in.WriteString("go on\n")
		exits(t, j.cmd, 0, j.out, "done")
	}
}

// run and its watchdog, which both enforce the deadline, are killed at once: on Linux the command dies with them.
func TestRunAndItsWatchdogKilled(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a process with its parent")
	}
	p := start(t)
	cmd, out := p.background(nil, "run", "r", "--", "sh", "-c", `echo "here $$ $PPID"; exec sleep 600`)
	var child, parent int
	if _, err := fmt.Sscanf(out.String(), "here %d %d", &child, &parent); err != nil || parent != cmd.Process.Pid {
		t.Fatalf("%q, %v", out, err)
	}
	watchdog := childNamed(t, parent, client.WatchdogCommand().Name())
	_ = syscall.Kill(parent, syscall.SIGSTOP) // so that it cannot notice
	_ = syscall.Kill(watchdog, syscall.SIGKILL)
	_ = syscall.Kill(parent, syscall.SIGKILL)
	_ = cmd.Wait()
	testenv.Eventually(t, 10*time.Second, func() error {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); err == nil && !strings.Contains(string(text), ") Z") {
			return errors.New("the command is alive")
		}
		return nil
	})
}

// childNamed returns the child of a process whose command line contains this word.
func childNamed(t *testing.T, parent int, word string) int {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range all {
		words, _ := os.ReadFile(dir + "/cmdline") // one that has ended meanwhile is not it
		stat, _ := os.ReadFile(dir + "/stat")
		_, rest, _ := strings.Cut(string(stat), ") ")
		var state string
		var of, pid int
		if _, err := fmt.Sscan(rest, &state, &of); err != nil || of != parent || !slices.Contains(strings.Split(string(words), "\x00"), word) {
			continue
		}
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err == nil {
			return pid
		}
	}
	t.Fatalf("process %d has no child %q", parent, word)
	return 0
}
