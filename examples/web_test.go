package examples_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
)

// webApp is how to run a web application of several processes.
type webApp func(*testing.T) (command, env []string)

var webApps = map[string]webApp{
	"Flask":   gunicorn("flask_app:app", map[string]string{"flask": "python3-flask", "psycopg": "python3-psycopg", "gunicorn": "gunicorn"}),
	"Django":  gunicorn("django_app:application", map[string]string{"django": "python3-django", "psycopg2": "python3-psycopg2", "gunicorn": "gunicorn"}),
	"Express": expressApp,
}

func gunicorn(app string, libraries map[string]string) webApp {
	return func(t *testing.T) (command, env []string) {
		t.Helper()
		python := testenv.PythonWith(t, libraries)
		return []string{python, "-B", "-m", "gunicorn", "--chdir", "web-python", "--workers", fmt.Sprint(webWorkers), "--bind", "127.0.0.1:0", app}, []string{"PYTHONPATH=" + clientSource(t)}
	}
}

func expressApp(t *testing.T) (command, env []string) {
	t.Helper()
	modules := testenv.NodeModules(t, map[string]string{"express": "node-express", "pg": "node-pg"})
	own := t.TempDir()
	source, err := filepath.Abs("../clients/typescript")
	if err == nil {
		err = os.Symlink(source, filepath.Join(own, "fencelock")) // as npm install does with a folder
	}
	if err != nil {
		t.Fatal(err)
	}
	return []string{testenv.Node(t), "web-express/app.js"}, []string{"NODE_PATH=" + modules + ":" + own, "PORT=0", fmt.Sprint("WORKERS=", webWorkers)}
}

const (
	webWorkers = 3
	webTTL     = 2 * time.Second // of the applications' leases
)

// Of what is deposited through several workers, of which some are frozen for longer than their leases live
// and some are killed, nothing is lost or doubled.
func TestWebApps(t *testing.T) { testWebApps(t, 1) }

func TestSoakWebApps(t *testing.T) { testWebApps(t, 4) }

func testWebApps(t *testing.T, rounds int) {
	t.Helper()
	testenv.NeedsServer(t)
	locks := serve(t)
	for name, app := range webApps {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := startWeb(t, app, locks)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			var clients sync.WaitGroup
			for n := range 2 * webWorkers {
				clients.Go(func() { w.deposit(ctx, n) })
			}
			for range rounds {
				w.acknowledges(t)
				w.fault(t)
			}
			w.acknowledges(t)
			end()
			clients.Wait()
			w.judge(t)
		})
	}
}

// listens finds the address in what gunicorn and our program say.
var listens = regexp.MustCompile(`(?i)listening (?:at:|on) (http://127.0.0.1:\d+)`)

// web is an application that runs.
type web struct {
	url, database string
	process       *os.Process

	mu           sync.Mutex
	acknowledged map[string]bool // deposits
}

func startWeb(t *testing.T, app webApp, locks string) *web {
	t.Helper()
	w := &web{database: prepare(t, "deposits.sql"), acknowledged: map[string]bool{}}
	command, env := app(t)
	cmd, said := exec.Command(command[0], command[1:]...), &testenv.Buffer{}
	cmd.Env = append(os.Environ(), append(env, "DATABASE_URL="+w.database, "FENCELOCK_URL="+locks, fmt.Sprint("LEASE_TTL=", webTTL.Seconds()))...)
	cmd.Stdout, cmd.Stderr = said, said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.process = cmd.Process
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // with its workers
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", command, said)
		}
	})
	testenv.Eventually(t, time.Minute, func() error {
		found := listens.FindStringSubmatch(said.String())
		if found == nil {
			return fmt.Errorf("it listens nowhere: %s", said)
		}
		w.url = found[1]
		return nil
	})
	return w
}

// deposit is a client, until the context ends.
func (w *web) deposit(ctx context.Context, n int) {
	client := &http.Client{Timeout: 2 * webTTL, Transport: &http.Transport{DisableKeepAlives: true}}
	for i := 0; ctx.Err() == nil; i++ {
		id := fmt.Sprintf("%d-%d", n, i)
		url := fmt.Sprintf("%s/accounts/%d/deposits/%s", w.url, 1+rand.IntN(webWorkers-1), id)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount": 1}`))
		if err != nil {
			panic(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil { // before it listens, and from a worker that is killed
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			w.mu.Lock()
			w.acknowledged[id] = true
			w.mu.Unlock()
		}
	}
}

func (w *web) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acknowledged)
}

// acknowledges waits for some deposits more.
func (w *web) acknowledges(t *testing.T) {
	t.Helper()
	want := w.count() + 10
	testenv.Eventually(t, time.Minute, func() error {
		if got := w.count(); got < want {
			return fmt.Errorf("%d deposits, want %d", got, want)
		}
		return nil
	})
}

// fault freezes one worker until its lease has ended and others have made deposits, and kills another one meanwhile.
func (w *web) fault(t *testing.T) {
	t.Helper()
	workers := w.workers(t)
	rand.Shuffle(len(workers), func(i, j int) { workers[i], workers[j] = workers[j], workers[i] })
	_ = syscall.Kill(workers[0], syscall.SIGSTOP)
	over := time.After(webTTL + webTTL/4)
	_ = syscall.Kill(workers[1], syscall.SIGKILL)
	<-over
	w.acknowledges(t)
	_ = syscall.Kill(workers[0], syscall.SIGCONT)
}

// workers are the ids of the processes, once all run.
func (w *web) workers(t *testing.T) (pids []int) {
	t.Helper()
	file := fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", w.process.Pid)
	testenv.Eventually(t, time.Minute, func() error {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		pids = nil
		for field := range strings.FieldsSeq(string(raw)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
		if len(pids) < webWorkers {
			return fmt.Errorf("%d workers", len(pids))
		}
		return nil
	})
	return pids
}

// judge compares balances, deposits and answers.
func (w *web) judge(t *testing.T) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), w.database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	// What workers still have under way may be committed between two queries.
	rows, err := conn.Query(t.Context(), `SELECT d.id, b.wrong FROM deposits d, (SELECT count(*) AS wrong FROM accounts a
		WHERE balance <> (SELECT coalesce(sum(amount), 0) FROM deposits WHERE account = a.id)) b`)
	if err != nil {
		t.Fatal(err)
	}
	var id string
	var wrong, made int
	lost := w.count()
	if _, err := pgx.ForEachRow(rows, []any{&id, &wrong}, func() error {
		made++
		if w.acknowledged[id] {
			lost--
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if lost > 0 || wrong > 0 {
		t.Errorf("%d of %d deposits that were acknowledged are lost, and %d accounts differ from their deposits", lost, len(w.acknowledged), wrong)
	}
	t.Logf("%d deposits, of which %d were acknowledged", made, len(w.acknowledged))
}
