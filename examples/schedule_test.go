package examples_test

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
)

// scheduled starts a program of schedule-python in the background, until the test ends.
func scheduled(t *testing.T, env []string, command ...string) (*exec.Cmd, *testenv.Buffer) {
	t.Helper()
	cmd, said := exec.CommandContext(t.Context(), command[0], command[1:]...), &testenv.Buffer{}
	cmd.Dir = "schedule-python"
	cmd.Env = append(os.Environ(), append(env, "PYTHONDONTWRITEBYTECODE=1", "PYTHONPATH="+clientSource(t))...)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s said:\n%s", command, said)
		}
	})
	return cmd, said
}

func clientSource(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../clients/python/src")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// numbers are those in the lines that begin with a word, which is left out.
func numbers(t *testing.T, text, word string) (lines [][]int64) {
	t.Helper()
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || !strings.HasPrefix(fields[0], word) || !strings.HasSuffix(line, "\n") {
			continue
		}
		var all []int64
		for _, field := range fields[1:] {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			all = append(all, n)
		}
		lines = append(lines, all)
	}
	return lines
}

func TestSchedules(t *testing.T) {
	testenv.NeedsServer(t)
	locks := serve(t)
	for name, test := range map[string]func(t *testing.T, locks string){
		"APScheduler": testAPScheduler, "Celery": testCelery, "Django": testDjangoCommand,
	} {
		t.Run(name, func(t *testing.T) {
			if name != "APScheduler" {
				testenv.Long(t, "a job that Celery or a Django command runs twice or beside another")
			}
			t.Parallel()
			test(t, locks)
		})
	}
}

// Of two APSchedulers one runs the jobs, and when it is killed the other does, under a
// larger token.
func testAPScheduler(t *testing.T, locks string) {
	t.Helper()
	python := testenv.PythonWith(t, map[string]string{"apscheduler": "python3-apscheduler"})
	env := []string{"FENCELOCK_URL=" + locks, "LEASE_TTL=2"}
	type candidate struct {
		cmd  *exec.Cmd
		said *testenv.Buffer
	}
	var all []candidate
	for range 2 {
		cmd, said := scheduled(t, env, python, "apscheduler_leader.py")
		all = append(all, candidate{cmd, said})
	}
	leads := func(c candidate) bool { return len(numbers(t, c.said.String(), "report")) >= 3 }
	awaits := func(c ...candidate) (leader candidate) {
		testenv.Eventually(t, 30*time.Second, func() error {
			i := slices.IndexFunc(c, leads)
			if i < 0 {
				return fmt.Errorf("none leads")
			}
			leader = c[i]
			return nil
		})
		return leader
	}
	first := awaits(all...)
	second := all[0]
	if first == second {
		second = all[1]
	}
	if leads(second) {
		t.Fatal("both lead")
	}
	_ = first.cmd.Process.Kill()
	awaits(second)
	before, after := numbers(t, first.said.String(), "report"), numbers(t, second.said.String(), "report")
	last, next := before[len(before)-1], after[0]
	if last[0] >= next[0] || last[1] >= next[1] {
		t.Errorf("the last report of the first leader is %d, and the first of the second is %d", last, next)
	}
}

// Tasks for one customer run one after the other, and three at a time in all, on several workers. What runs in processes that
// are killed is done by others.
func testCelery(t *testing.T, locks string) {
	t.Helper()
	python := testenv.PythonWith(t, map[string]string{"celery": "python3-celery", "redis": "python3-redis"})
	log := filepath.Join(t.TempDir(), "invoices")
	env := []string{"FENCELOCK_URL=" + locks, "CELERY_BROKER_URL=" + testenv.StartRedisN(t, 1)[0].URL(), "INVOICE_LOG=" + log, "LEASE_TTL=2"}
	var workers []*exec.Cmd
	for i := range 2 {
		worker, _ := scheduled(t, env, python, "-m", "celery", "-A", "celery_tasks", "worker", "--concurrency", "4", "-n", fmt.Sprintf("w%d@localhost", i))
		workers = append(workers, worker)
	}
	const tasks = 12
	send, said := scheduled(t, env, python, "-c", fmt.Sprintf("import celery_tasks as t\nfor i in range(%d): t.invoice.delay(f'c{i %% 5}', 0.2)", tasks))
	if err := send.Wait(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	var text string
	done := func(want int) {
		t.Helper()
		testenv.Eventually(t, 60*time.Second, func() error {
			data, _ := os.ReadFile(log)
			ids := map[string]bool{} // a task that was killed after its end runs again
			for line := range strings.Lines(string(data)) {
				ids[strings.Fields(line)[0]] = strings.HasSuffix(line, "\n")
			}
			if text = string(data); len(ids) < want {
				return fmt.Errorf("done so far:\n%s", text)
			}
			return nil
		})
	}
	done(1)
	for _, pid := range childrenOf(t, workers[0].Process) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	done(tasks)
	one := func(what string, runs [][]int64, at int) {
		slices.SortFunc(runs, func(a, b []int64) int { return int(a[2] - b[2]) })
		for i := range runs[1:] {
			if a, b := runs[i], runs[i+1]; a[3] > b[2] || at >= 0 && a[at] >= b[at] {
				t.Errorf("%s: %d overlaps %d, or its token is smaller", what, a, b)
			}
		}
	}
	const slot, token = 0, 1
	bySlot := map[int64][][]int64{}
	for c := range 5 {
		runs := numbers(t, text, fmt.Sprintf("c%d", c))
		one(fmt.Sprintf("customer %d", c), runs, token)
		for _, run := range runs {
			bySlot[run[slot]] = append(bySlot[run[slot]], run)
		}
	}
	for n, runs := range bySlot {
		if n < 1 || n > 3 {
			t.Errorf("slot %d", n)
		}
		one(fmt.Sprintf("slot %d", n), runs, -1)
	}
}

// A management command that cron starts on every host runs on one.
func testDjangoCommand(t *testing.T, locks string) {
	t.Helper()
	python := testenv.PythonWith(t, map[string]string{"django": "python3-django", "psycopg2": "python3-psycopg2"})
	database := prepare(t, "setup.sql")
	env := append(libpq(t, database), "FENCELOCK_URL="+locks)
	outcomes := map[string]int{}
	for range 3 { // one after the other: the clocks of hosts differ
		cmd, said := scheduled(t, env, python, "manage.py", "nightly")
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v: %s", err, said)
		}
		outcome, _, _ := strings.Cut(said.String(), " ")
		outcomes[strings.TrimSuffix(outcome, ":")]++
	}
	if outcomes["closed"] != 1 || outcomes["skipped"] != 2 {
		t.Errorf("outcomes %v", outcomes)
	}
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	var balance int
	if err := conn.QueryRow(t.Context(), "SELECT balance FROM accounts WHERE id = 1").Scan(&balance); err != nil || balance != 1 {
		t.Errorf("balance %d, %v", balance, err)
	}
}

// libpq is a database's address as variables of libpq.
func libpq(t *testing.T, database string) []string {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := u.User.Password()
	host := u.Hostname()
	if socket := u.Query().Get("host"); socket != "" {
		host = socket
	}
	return []string{"PGHOST=" + host, "PGPORT=" + u.Port(), "PGUSER=" + u.User.Username(), "PGPASSWORD=" + password, "PGDATABASE=" + strings.TrimPrefix(u.Path, "/")}
}
