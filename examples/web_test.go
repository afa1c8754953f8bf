package examples_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/mysqlguard"
)

// webApp is a web application of several processes, without what all of them have in their environment, on a database that it makes.
type webApp struct {
	command  func(*testing.T) *exec.Cmd
	database func(*testing.T) (db *sql.DB, url string)
}

var webApps = map[string]webApp{
	"Go":            {goApp, postgresDeposits},
	"Go on MariaDB": {goApp, mariaDeposits},
	"Flask":         {gunicorn("flask_app:app", map[string]string{"flask": "python3-flask", "psycopg": "python3-psycopg", "gunicorn": "gunicorn"}), postgresDeposits},
	"Django":        {gunicorn("django_app:application", map[string]string{"django": "python3-django", "psycopg2": "python3-psycopg2", "gunicorn": "gunicorn"}), postgresDeposits},
	"Express":       {expressApp, postgresDeposits},
}

func gunicorn(app string, libraries map[string]string) func(*testing.T) *exec.Cmd {
	return func(t *testing.T) *exec.Cmd {
		t.Helper()
		python := testenv.PythonWith(t, libraries)
		cmd := exec.Command(python, "-B", "-m", "gunicorn", "--chdir", "web-python", "--workers", fmt.Sprint(webWorkers), "--bind", "127.0.0.1:0", app)
		cmd.Env = []string{"PYTHONPATH=" + clientSource(t)}
		return cmd
	}
}

func expressApp(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(testenv.Node(t), "web-express/app.js")
	cmd.Env = append(nodeModules(t, map[string]string{"express": "node-express", "pg": "node-pg"}), "PORT=0", fmt.Sprint("WORKERS=", webWorkers))
	return cmd
}

// goApp is several processes on one socket, as systemd starts them.
func goApp(t *testing.T) *exec.Cmd {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	socket, err := listener.(*net.TCPListener).File()
	_ = listener.Close()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = socket.Close() })
	const supervisor = `for ((n = 0; n < WORKERS; n++)); do "$0" & done; while :; do wait -n; "$0" & done`
	cmd := exec.Command(testenv.Installed(t, "bash", "bash"), "-c", supervisor, testenv.Build(t, "./web-go"))
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Env = []string{"LISTEN_FDS=1", fmt.Sprint("WORKERS=", webWorkers)}
	return cmd
}

func postgresDeposits(t *testing.T) (db *sql.DB, url string) {
	t.Helper()
	return postgresOf(t, "deposits.sql")
}

// postgresOf makes a database with the guard, and with the tables of a file.
func postgresOf(t *testing.T, file string) (db *sql.DB, url string) {
	t.Helper()
	url = prepare(t, file)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db, url
}

func mariaDeposits(t *testing.T) (db *sql.DB, dsn string) {
	t.Helper()
	maria := testenv.MariaDB(t)
	if err := mysqlguard.Install(t.Context(), maria.OwnerURL()); err != nil {
		t.Fatal(err)
	}
	db = maria.DB()
	for _, text := range []string{
		"CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0)",
		"INSERT INTO accounts (id) SELECT seq FROM seq_1_to_100",
		"CREATE TABLE deposits (id VARCHAR(100) PRIMARY KEY, account INT NOT NULL, amount BIGINT NOT NULL)",
		"CALL fencing_protect('accounts', \"CONCAT('accounts/', id)\", 'strict')",
	} {
		if _, err := db.ExecContext(t.Context(), text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	owner, err := url.Parse(maria.OwnerURL())
	if err != nil {
		t.Fatal(err)
	}
	config := mysql.NewConfig()
	config.User, config.Net, config.Addr, config.DBName = owner.User.Username(), "tcp", owner.Host, strings.TrimPrefix(owner.Path, "/")
	config.Passwd, _ = owner.User.Password()
	config.Params = map[string]string{"idle_transaction_timeout": fmt.Sprint(int((webTTL + time.Second).Seconds()))} // as docs/reference/guard-mariadb.md says
	return db, config.FormatDSN()
}

const (
	webWorkers = 3
	webTTL     = 2 * time.Second // of the applications' leases
)

// Of what is deposited through several workers, of which some are frozen for longer than their leases live
// and some are killed, nothing is lost or doubled.
func TestWebApps(t *testing.T) {
	t.Parallel()
	testWebApps(t, 1)
}

func TestSoakWebApps(t *testing.T) {
	testenv.Soak(t, "a deposit that is lost in the second fault or later")
	testWebApps(t, 4)
}

func testWebApps(t *testing.T, rounds int) {
	t.Helper()
	testenv.NeedsServer(t)
	locks := serve(t)
	for name, app := range webApps {
		t.Run(name, func(t *testing.T) {
			if name != "Go" {
				testenv.Long(t, "a deposit that is lost with Django, Flask or Express, or with the guard in MariaDB")
			}
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
	url     string
	db      *sql.DB
	process *os.Process

	mu           sync.Mutex
	acknowledged map[string]bool // deposits
}

func startWeb(t *testing.T, app webApp, locks string) *web {
	t.Helper()
	db, url := app.database(t)
	w := &web{db: db, acknowledged: map[string]bool{}}
	cmd, said := app.command(t), &testenv.Buffer{}
	cmd.Env = append(append(os.Environ(), cmd.Env...), "DATABASE_URL="+url, "FENCELOCK_URL="+locks, fmt.Sprint("LEASE_TTL=", webTTL.Seconds()))
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
			t.Logf("%s said:\n%s", cmd, said)
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
	client := &http.Client{Timeout: 2 * webTTL, Transport: &http.Transport{DisableKeepAlives: true}} // a frozen worker does not answer
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
			if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
				client.Timeout = min(2*client.Timeout, 8*webTTL) // a slow worker would serve nothing but requests whose clients have gone
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
			continue
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			client.Timeout = 2 * webTTL
			w.mu.Lock()
			w.acknowledged[id] = true
			w.mu.Unlock()
		}
		select { // the clients are to meet, and not to keep the machine busy
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
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
	testenv.Eventually(t, time.Minute, func() error {
		if pids = childrenOf(t, w.process); len(pids) < webWorkers {
			return fmt.Errorf("%d workers", len(pids))
		}
		return nil
	})
	return pids
}

// childrenOf are the processes that a process has started.
func childrenOf(t *testing.T, process *os.Process) (pids []int) {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(raw)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// judge compares balances, deposits and answers.
func (w *web) judge(t *testing.T) {
	t.Helper()
	// What workers still have under way may be committed between two queries.
	rows, err := w.db.QueryContext(t.Context(), `SELECT d.id, b.wrong FROM deposits d, (SELECT count(*) AS wrong FROM accounts a
		WHERE balance <> (SELECT coalesce(sum(amount), 0) FROM deposits WHERE account = a.id)) b`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var id string
	var wrong, made int
	lost := w.count()
	for rows.Next() {
		if err := rows.Scan(&id, &wrong); err != nil {
			t.Fatal(err)
		}
		made++
		if w.acknowledged[id] {
			lost--
		}
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	if lost > 0 || wrong > 0 {
		t.Errorf("%d of %d deposits that were acknowledged are lost, and %d accounts differ from their deposits", lost, len(w.acknowledged), wrong)
	}
	t.Logf("%d deposits, of which %d were acknowledged", made, len(w.acknowledged))
}
