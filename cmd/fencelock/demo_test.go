package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/chromedp/chromedp"

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

// exit waits for the end of the demonstration, checks that no process is left, and returns the exit code.
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

// ended reports whether a process has ended, or is a zombie that only waits for its parent.
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
	html := string(text)
	if !strings.HasSuffix(html, "</html>\n") || strings.Contains(html, "an older, longer page") || !strings.Contains(html, "nothing was lost") || !strings.Contains(html, "accounts/alice") {
		t.Errorf("the page has %d bytes and ends with %q", len(html), html[max(0, len(html)-200):])
	}
	checkRecording(t, html)
	checkDrawing(t, page, d.output.String())
}

// checkDrawing opens the page in a browser: it draws both rounds, says of each step what the terminal said, and
// has a place for everything.
func checkDrawing(t *testing.T, page, terminal string) {
	t.Helper()
	allocated, cancel := chromedp.NewExecAllocator(t.Context(), append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(testenv.Browser(t)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.Flag("disable-dev-shm-usage", true))...)
	defer cancel()
	ctx, cancel := chromedp.NewContext(allocated)
	defer cancel()
	ctx, cancel = context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var text string
	var transcriptOpen bool
	var wrong, steps []string
	if err := chromedp.Run(ctx, chromedp.Navigate("file://"+page), chromedp.WaitVisible("#run"), chromedp.Text("#race", &text),
		chromedp.Evaluate(`[...document.querySelectorAll('.steps li')].map((li) => [...li.querySelectorAll('.who, .text')].map((e) => e.textContent).join('  '))`, &steps),
		chromedp.Evaluate(`document.querySelector('#transcript').open`, &transcriptOpen)); err != nil {
		t.Fatal(err)
	}
	for _, says := range []string{"Play the recording", "B's deposit is overwritten", "refused: 412 stale-token", "The balance is 130", "A got 412 and began again", "Claim before you read"} {
		if !strings.Contains(text, says) {
			t.Errorf("the page does not say %q, but\n%s", says, text)
		}
	}
	for _, step := range steps {
		if !strings.Contains(terminal, "  "+step+"\n") {
			t.Errorf("the terminal does not say %q, as the page does", step)
		}
	}
	if transcriptOpen || len(steps) < 30 {
		t.Errorf("the page shows %d steps, and the text in place of its drawing: %t", len(steps), transcriptOpen)
	}
	for _, width := range []int64{320, 390, 1440} {
		if err := chromedp.Run(ctx, chromedp.EmulateViewport(width, 800), chromedp.Evaluate(layoutScript, &wrong)); err != nil || len(wrong) > 0 {
			t.Errorf("at %d: %q, %v", width, wrong, err)
		}
	}
}

// checkRecording compares the recording in a page with the one that the documentation's site shows: they have
// the same steps with the same facts. It writes the site's again into the file FENCELOCK_TEST_RECORDING, if one
// is named.
func checkRecording(t *testing.T, page string) {
	t.Helper()
	_, recording, _ := strings.Cut(page, `id="recording">`)
	recording, _, _ = strings.Cut(recording, "</script>")
	if file := os.Getenv("FENCELOCK_TEST_RECORDING"); file != "" {
		if err := os.WriteFile(file, []byte(recording+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	site, err := os.ReadFile(filepath.Join("..", "..", "site", "data", "race.json"))
	if err != nil {
		t.Fatal(err)
	}
	if now, shown := stepsOf(t, []byte(recording)), stepsOf(t, site); !slices.Equal(now, shown) {
		t.Errorf("the demonstration now has the steps\n%q\nand the site shows\n%q\n(make recording)", now, shown)
	}
}

// stepsOf lists who did what in a recording, and with what result. On a busy machine B may ask for the lock only
// after A's lease has expired; then the recording lacks two steps, so stepsOf leaves them out.
func stepsOf(t *testing.T, recording []byte) (steps []string) {
	t.Helper()
	var report struct {
		Rounds []struct {
			Events []map[string]any `json:"events"`
		} `json:"rounds"`
	}
	if err := json.Unmarshal(recording, &report); err != nil {
		t.Fatal(err)
	}
	for _, round := range report.Rounds {
		for _, e := range round.Events {
			who, kind := e["who"], e["kind"]
			if kind == "held" || kind == "expired" {
				continue
			}
			delete(e, "at") // the first event's is 0, and left out
			steps = append(steps, fmt.Sprint(who, " ", kind, " ", e["balance"], " ", slices.Sorted(maps.Keys(e))))
		}
	}
	return steps
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

// TestDemoInterrupted interrupts the demonstration while a worker is stopped.
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

// TestDemoThatGoesWrong kills the stopped worker: the demonstration tells no story, and does not exit with 0.
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

// TestDemoKilled kills the demonstration: its child processes end where the kernel can do that.
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
