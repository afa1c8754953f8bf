package faults

import (
	"bufio"
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// worker is one process of the client under test.
type worker struct {
	book    *book
	command []string
	env     []string
	cmd     *exec.Cmd
	in      io.Closer
	reading sync.WaitGroup
	stderr  strings.Builder
}

func startWorker(t *testing.T, b *book, command, env []string) *worker {
	t.Helper()
	w := &worker{book: b, command: command, env: append(os.Environ(), env...)}
	w.start(t)
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	return w
}

func (w *worker) start(t *testing.T) {
	t.Helper()
	w.cmd = exec.Command(w.command[0], w.command[1:]...)
	w.cmd.Env, w.cmd.Stderr = w.env, &w.stderr
	in, errIn := w.cmd.StdinPipe()
	out, errOut := w.cmd.StdoutPipe()
	if errIn != nil || errOut != nil {
		t.Fatal(errIn, errOut)
	}
	w.in = in
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			w.book.note(lines.Bytes())
		}
	})
}

// killed kills the worker, and starts another in its place.
func (w *worker) killed(t *testing.T) {
	t.Helper()
	_ = w.cmd.Process.Kill()
	w.reading.Wait()
	_ = w.cmd.Wait()
	w.start(t)
}

func (w *worker) end(t *testing.T) {
	t.Helper()
	_ = w.in.Close()
	stuck := time.AfterFunc(time.Minute, func() { _ = w.cmd.Process.Signal(syscall.SIGABRT) }) // makes it print the stacks of its threads
	defer stuck.Stop()
	w.reading.Wait()
	if err := w.cmd.Wait(); err != nil || w.stderr.Len() > 0 {
		t.Errorf("worker: %v\n%s", err, w.stderr.String())
	}
}

// said is a line that a worker wrote.
type said struct {
	Effect string         `json:"effect"`
	Work   []float64      `json:"work"`
	Call   []float64      `json:"call"`
	At     string         `json:"at"`
	Errors map[string]int `json:"errors"`
	Leaks  map[string]int `json:"leaks"`
}

// book collects what the workers wrote.
type book struct {
	mu      sync.Mutex
	effects map[string]bool
	work    []work
	ends    []said
	beyond  time.Duration // the longest time by which a call outlasted its wait, without time in which its process could not run
}

// span converts seconds.
func span(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// work is an interval on the machine's monotonic clock.
type work struct {
	account           int
	begin, end, until time.Duration
	starved           time.Duration // how long its threads waited for a processor between until and end
	at                string        // what it did last
}

// stopped returns when the work would have ended if its process had always had a processor.
func (w work) stopped() time.Duration { return w.end - w.starved }

func (b *book) note(line []byte) {
	var s said
	if json.Unmarshal(line, &s) != nil {
		return // a killed worker's last line
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case s.Effect != "":
		b.effects[s.Effect] = true
	case len(s.Work) == 5: //nolint:mnd // account, begin, end, until, starved
		b.work = append(b.work, work{int(s.Work[0]), span(s.Work[1]), span(s.Work[2]), span(s.Work[3]), span(s.Work[4]), s.At})
	case len(s.Call) == 2: //nolint:mnd // beyond, starved
		b.beyond = max(b.beyond, span(s.Call[0]-s.Call[1]))
	case s.Errors != nil:
		b.ends = append(b.ends, s)
	}
}

// mostBeyond is how long a call may outlast its wait: the second that clients promise, plus the delay of a
// process on a busy machine.
const mostBeyond = 1200 * time.Millisecond

// tolerated is how long work may seem to continue after its lease.
const tolerated = 100 * time.Millisecond

func (b *book) judge(t *testing.T, database string, workers int) {
	t.Helper()
	b.deposits(t, database)
	longest, overlap, at := b.overruns()
	errors := map[string]int{}
	for _, e := range b.ends {
		for name, n := range e.Errors {
			errors[name] += n
			if strings.HasPrefix(name, "unexpected") {
				t.Error(name)
			}
		}
		for what, n := range e.Leaks {
			if n > 0 {
				t.Errorf("a worker leaked %d %s", n, what)
			}
		}
	}
	if len(b.ends) != workers {
		t.Errorf("%d workers came to their end, want %d", len(b.ends), workers)
	}
	if longest > tolerated || overlap > tolerated {
		t.Errorf("work outlived its lease by %s (%s), and two workers were at one account for %s", longest, at, overlap)
	}
	if b.beyond > mostBeyond {
		t.Errorf("a call for a lease ended %s after its wait, want %s at most", b.beyond, mostBeyond)
	}
	t.Logf("the longest call for a lease ended %s after its wait", b.beyond)
	t.Logf("%d deposits under %d leases; work outlived its lease by %s at most (below 0: it ended before), and by %s more in processes without a processor; refused or failed: %v",
		len(b.effects), len(b.work), longest, b.starved(), errors)
}

// deposits compares the balances of the accounts with the committed rows, and these with the deposits that
// the workers reported.
func (b *book) deposits(t *testing.T, database string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	rows, _ := conn.Query(t.Context(), "SELECT id FROM shop.effects")
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	lost := maps.Clone(b.effects)
	for _, id := range ids {
		delete(lost, id)
	}
	if len(lost) > 0 {
		t.Errorf("%d deposits were committed, and are lost", len(lost))
	}
	var wrong int
	const differs = `SELECT count(*) FROM shop.accounts a WHERE balance <> (SELECT count(*) FROM shop.effects e WHERE e.account = a.id)`
	if err := conn.QueryRow(t.Context(), differs).Scan(&wrong); err != nil || wrong > 0 {
		t.Errorf("%d accounts differ from their deposits (%v)", wrong, err)
	}
	if len(b.effects) < 50 { //nolint:mnd // what a slow machine does in the shortest run
		t.Errorf("only %d deposits were made", len(b.effects))
	}
}

// starved returns the longest time for which a worker's process waited for a processor after its lease had
// ended.
func (b *book) starved() (longest time.Duration) {
	for _, w := range b.work {
		longest = max(longest, w.starved)
	}
	return longest
}

// overruns returns how long work outlived its lease at most, and how long two workers worked on one account,
// without time in which their processes could not run. at is what the longest work did last.
func (b *book) overruns() (longest, overlap time.Duration, at string) {
	longest, overlap = -workTTL, -workTTL
	slices.SortFunc(b.work, func(x, y work) int {
		return cmp.Or(cmp.Compare(x.account, y.account), cmp.Compare(x.begin, y.begin))
	})
	for i, w := range b.work {
		if over := w.stopped() - w.until; over > longest {
			longest, at = over, w.at
		}
		if i > 0 && b.work[i-1].account == w.account {
			overlap = max(overlap, b.work[i-1].stopped()-w.begin)
		}
	}
	return longest, overlap, at
}
