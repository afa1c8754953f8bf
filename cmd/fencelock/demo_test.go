package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// demoRun is a demonstration in a temporary directory of its own.
type demoRun struct {
	t      *testing.T
	cmd    *exec.Cmd
	tmp    string
	output testenv.Buffer
}

func startDemo(t *testing.T, args ...string) *demoRun {
	t.Helper()
	d := &demoRun{t: t, tmp: t.TempDir()}
	// A server of somebody's must not be what is shown.
	env := []string{"TMPDIR=" + d.tmp, "FENCELOCK_LISTEN=nowhere", "FENCELOCK_DATABASE_URL=nothing"}
	d.cmd = command(t, env, append([]string{"demo"}, args...)...)
	d.cmd.Stdout, d.cmd.Stderr = &d.output, &d.output
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return d
}

// exit waits for the end, checks that nothing was left, and returns the code.
func (d *demoRun) exit() int {
	d.t.Helper()
	err := d.cmd.Wait()
	d.noProcessLeft()
	if rest, _ := os.ReadDir(d.tmp); len(rest) > 0 {
		d.t.Errorf("left behind: %v", rest)
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode()
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return 0
}

// noProcessLeft looks for the workers by their ids, and for the server, where
// there is a /proc, by its directory.
func (d *demoRun) noProcessLeft() {
	d.t.Helper()
	testenv.Eventually(d.t, 10*time.Second, func() error {
		for _, m := range regexp.MustCompile(`starts as process (\d+)`).FindAllStringSubmatch(d.output.String(), -1) {
			pid, err := strconv.Atoi(m[1])
			if err != nil {
				return err
			}
			if !ended(pid) {
				return errors.New("a worker lives on")
			}
		}
		links, _ := filepath.Glob("/proc/[0-9]*/cwd")
		for _, link := range links {
			if dir, err := os.Readlink(link); err == nil && strings.HasPrefix(dir, d.tmp) {
				return errors.New("the server lives on: " + link)
			}
		}
		return nil
	})
}

// ended says whether a process is gone, or waits only for somebody to notice.
func ended(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && strings.Contains(string(stat), ") Z ")
}

func (d *demoRun) until(text string) {
	d.t.Helper()
	testenv.Eventually(d.t, 30*time.Second, func() error {
		if !strings.Contains(d.output.String(), text) {
			return errors.New(text + " is not in the output:\n" + d.output.String())
		}
		return nil
	})
}

// checkStory looks for the story's turns, in their order, and for the verdicts.
func (d *demoRun) checkStory() {
	d.t.Helper()
	out := d.output.String()
	rest := out
	for _, turn := range []string{
		"Round one", "A  has the lock", "is stopped (SIGSTOP)", "B  finds the lock held by A", "waiting for A's lease to expire",
		"B  has the lock", "B  writes the balance: 120", "A  continues (SIGCONT)", "A  writes the balance: 130", "404",
		"token ", "B's deposit is overwritten", // the chart: how much of a label fits in depends on the times
		"Round two", "A  claims the record", "is stopped (SIGSTOP)", "B  claims the record", "A  continues (SIGCONT)",
		"412 stale-token", "A  has the lock", "reads: 120", "A  writes the balance with token", ": 150",
		"refused: 412 stale-token",
		"✗ Round one: an update was lost.\n  The balance is 130",
		"✓ Round two: the late write was refused, and nothing was lost.\n  The balance is 150",
	} {
		_, after, found := strings.Cut(rest, turn)
		if !found {
			d.t.Fatalf("%q is missing, or not in its place:\n%s", turn, out)
		}
		rest = after
	}
	for line := range strings.Lines(out) {
		if strings.ContainsRune(line, '\x1b') || utf8.RuneCountInString(strings.TrimSpace(line)) > 80 {
			d.t.Errorf("line for a larger terminal: %q", line)
		}
	}
}

func TestDemoEmbedded(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "demo.html")
	if err := os.WriteFile(page, []byte(strings.Repeat("an older, longer page ", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startDemo(t, "--ttl", "2s", "--html", page)
	if code := d.exit(); code != 0 {
		t.Fatalf("exit code %d:\n%s", code, d.output.String())
	}
	d.checkStory()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if html := string(text); !strings.HasSuffix(html, "</html>\n") || strings.Contains(html, "older") ||
		strings.Count(html, "<svg") != 2 || !strings.Contains(html, "nothing was lost") || !strings.Contains(html, "accounts/alice") {
		t.Errorf("the page is %s", html)
	}
}

func TestDemoOnRedisAndPostgres(t *testing.T) {
	testenv.Long(t, "a demo that fails on real Redis and Postgres")
	t.Parallel()
	var addrs []string
	for _, r := range testenv.StartRedisN(t, 5) {
		addrs = append(addrs, r.Addr())
	}
	pg := testenv.Postgres(t)
	redis, postgres := []string{"--redis", strings.Join(addrs, ",")}, []string{"--database-url", pg.URL()}
	for _, c := range []struct {
		name string
		args []string
		says string
	}{
		{"both", append(redis, postgres...), "a quorum of 3 of 5 Redis nodes, guarded records in Postgres"},
		{"both again", append(redis, postgres...), "Round two: storage that checks the token (a guarded record)"}, // the nodes are not new any more
		{"redis", redis, "a quorum of 3 of 5 Redis nodes, guarded records in the embedded file"},
		{"postgres", postgres, "one embedded node, guarded records in Postgres"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := startDemo(t, append(c.args, "--ttl", "4s")...) // so that B asks in time on a busy machine
			if code := d.exit(); code != 0 {
				t.Fatalf("exit code %d:\n%s", code, d.output.String())
			}
			d.checkStory()
			if text := strings.Join(strings.Fields(d.output.String()), " "); !strings.Contains(text, c.says) {
				t.Errorf("%q is missing:\n%s", c.says, text)
			}
		})
	}
}

// TestDemoInterrupted ends it while a worker is stopped.
func TestDemoInterrupted(t *testing.T) {
	testenv.Long(t, "a demo that leaves processes when it is interrupted")
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(signal.String(), func(t *testing.T) {
			page := filepath.Join(t.TempDir(), "demo.html")
			d := startDemo(t, "--ttl", "1m", "--html", page)
			d.until("waiting for A's lease to expire")
			begun := time.Now()
			if err := d.cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			if code := d.exit(); code != cli.ExitFailed || !strings.Contains(d.output.String(), "was interrupted") {
				t.Errorf("exit code %d:\n%s", code, d.output.String())
			}
			if took := time.Since(begun); took > 8*time.Second {
				t.Errorf("it took %s to end", took)
			}
			if _, err := os.Stat(page); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an empty page is left: %v", err)
			}
		})
	}
}

// TestDemoThatGoesWrong kills the stopped worker: no story, no 0.
func TestDemoThatGoesWrong(t *testing.T) {
	testenv.Long(t, "a demo that goes wrong and says nothing")
	t.Parallel()
	d := startDemo(t, "--ttl", "2s")
	d.until("A  is stopped")
	_, id, _ := strings.Cut(d.output.String(), "A  starts as process ")
	id, _, _ = strings.Cut(id, "\n")
	pid, err := strconv.Atoi(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := d.exit(); code != cli.ExitFailed || !strings.Contains(d.output.String(), "worker A ended with signal: killed") {
		t.Errorf("exit code %d:\n%s", code, d.output.String())
	}
}

// TestDemoWhoseReaderIsGone is what `fencelock demo | head` does.
func TestDemoWhoseReaderIsGone(t *testing.T) {
	testenv.Long(t, "a demo that outlives its terminal")
	t.Parallel()
	d := &demoRun{t: t, tmp: t.TempDir()}
	d.cmd = command(t, []string{"TMPDIR=" + d.tmp}, "demo", "--ttl", "800ms")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd.Stdout = w
	if err := errors.Join(d.cmd.Start(), w.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	if code := d.exit(); code == 0 {
		t.Error("exit code 0 and nobody saw it")
	}
}

// TestDemoKilled: the kernel ends the children where it can.
func TestDemoKilled(t *testing.T) {
	testenv.Long(t, "a demo that leaves processes when it is killed")
	t.Parallel()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("only Linux tells a process that its parent has died")
	}
	d := startDemo(t, "--ttl", "1m")
	d.until("waiting for A's lease to expire")
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait()
	d.noProcessLeft()
}

func TestDemosThatCannotBegin(t *testing.T) {
	testenv.Long(t, "a demo that cannot begin and does not say why")
	t.Parallel()
	for _, c := range []struct {
		name string
		args []string
		code int
		says string
	}{
		{"short lease", []string{"--ttl", "1ms"}, cli.ExitUsage, "--ttl 1ms: must be from 500ms"},
		{"argument", []string{"now"}, cli.ExitUsage, "takes no arguments"},
		{"no folder for the page", []string{"--html", "/no/such/folder/x.html"}, cli.ExitUsage, "--html"},
		{"two nodes", []string{"--redis", "a:1,b:2"}, cli.ExitFailed, "FENCELOCK_REDIS_ADDRS"},
		{"no Redis", []string{"--redis", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"}, cli.ExitUnavailable, "127.0.0.1:3/0 is unreachable: no server listens at its address: connection refused"},
		{"no database", []string{"--database-url", "postgres://127.0.0.1:1/x"}, cli.ExitUnavailable, "Postgres"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := startDemo(t, c.args...)
			if code := d.exit(); code != c.code || !strings.Contains(d.output.String(), c.says) {
				t.Errorf("exit code %d, want %d and %q:\n%s", code, c.code, c.says, d.output.String())
			}
		})
	}
}
