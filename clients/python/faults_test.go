package python_test

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
)

var runFor = flag.Duration("for", 40*time.Second, "how long TestSoakFaults takes")

// workTTL is that of the workers' leases.
const workTTL = 3 * time.Second

// Workers deposit under locks while servers are killed, frozen and started again, and
// so are a node and the workers themselves. The guard loses no deposit and doubles none,
// no work outlives its lease by 100 ms, no two workers are at one account, and
// neither threads nor sockets are left.
func TestSoakFaults(t *testing.T) {
	testenv.NeedsServer(t)
	python := testenv.PythonWith(t, libraries)
	database := accounts(t)
	exec := execSQL(t, database)
	exec("CREATE TABLE shop.effects (id text PRIMARY KEY, account int NOT NULL)")
	s := startStand(t)
	book := &book{effects: map[string]bool{}}
	var workers []*worker
	for _, kind := range []string{"sync", "sync", "aio"} {
		workers = append(workers, startWorker(t, book, python, kind, s.urls(), database))
	}
	for end := time.Now().Add(*runFor); time.Now().Before(end); {
		s.fault(t, workers)
	}
	t.Logf("faults: %v", s.faults)
	for _, w := range workers {
		w.end(t)
	}
	book.judge(t, database)
}

func execSQL(t *testing.T, url string) func(sql string) {
	t.Helper()
	return func(sql string) {
		t.Helper()
		conn, err := pgx.Connect(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(t.Context()) }()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
}

// stand is two servers on three nodes.
type stand struct {
	servers []*lockServer
	nodes   []*testenv.Redis
	faults  map[string]int
}

func startStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{nodes: testenv.StartRedisN(t, 3), faults: map[string]int{}}
	var nodes []string
	for _, n := range s.nodes {
		nodes = append(nodes, n.URL())
	}
	bin := buildService(t)
	for range 2 {
		server := &lockServer{bin: bin, address: freeAddress(t), env: []string{
			"FENCELOCK_REDIS_ADDRS=" + strings.Join(nodes, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_DATA=", "FENCELOCK_MAX_TTL=5s", "FENCELOCK_NODE_TIMEOUT=100ms",
			"FENCELOCK_DEFAULT_TTL=5s", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0",
		}}
		t.Cleanup(server.kill)
		server.start(t)
		s.servers = append(s.servers, server)
	}
	return s
}

func buildService(t *testing.T) (bin string) {
	t.Helper()
	bin = filepath.Join(t.TempDir(), "fencelock")
	run(t, "../..", "go", "build", "-o", bin, "./cmd/fencelock")
	return bin
}

func (s *stand) urls() string {
	return "http://" + s.servers[0].address + ",http://" + s.servers[1].address
}

// fault does one thing, and undoes it.
func (s *stand) fault(t *testing.T, workers []*worker) {
	t.Helper()
	server := s.servers[rand.IntN(len(s.servers))]
	down := time.Duration(rand.IntN(2500)) * time.Millisecond
	kinds := []struct {
		name string
		do   func()
	}{
		{"a server is killed", func() { server.kill(); time.Sleep(down); server.start(t) }},
		{"both servers are killed", func() {
			for _, each := range s.servers {
				each.kill()
			}
			time.Sleep(down / 2)
			for _, each := range s.servers {
				each.start(t)
			}
		}},
		{"a server is frozen", func() { server.signal(t, syscall.SIGSTOP); time.Sleep(2 * down); server.signal(t, syscall.SIGCONT) }},
		{"both servers are frozen for longer than a lease lives", func() {
			for _, each := range s.servers {
				each.signal(t, syscall.SIGSTOP)
			}
			time.Sleep(workTTL + down)
			for _, each := range s.servers {
				each.signal(t, syscall.SIGCONT)
			}
		}},
		{"a node is killed", func() { s.nodes[0].Kill(); time.Sleep(down); s.nodes[0].Restart() }},
		{"a worker is killed", func() { workers[rand.IntN(len(workers))].killed(t) }},
	}
	kind := kinds[rand.IntN(len(kinds))]
	s.faults[kind.name]++
	kind.do()
	time.Sleep(time.Duration(1000+rand.IntN(2000)) * time.Millisecond)
}

// lockServer is one process of the service, always on the same address.
type lockServer struct {
	bin, address string
	env          []string
	cmd          *exec.Cmd
}

// freeAddress is below the range that systems hand out by themselves, so that no
// connection takes it while the server is down.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 15000+rand.IntN(17000))
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

func (s *lockServer) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.bin, "serve")
	s.cmd.Env = append(append(os.Environ(), s.env...), "FENCELOCK_LISTEN="+s.address)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 30*time.Second, func() error {
		conn, err := net.Dial("tcp", s.address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (s *lockServer) kill() {
	if s.cmd != nil && s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

func (s *lockServer) signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

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

func startWorker(t *testing.T, b *book, python, kind, servers, database string) *worker {
	t.Helper()
	w := &worker{
		book: b, command: []string{python, "-X", "faulthandler", "tests/faults.py", kind, servers, "6", fmt.Sprint(workTTL.Seconds())},
		env: append(os.Environ(), "DATABASE_URL="+database, "PYTHONDONTWRITEBYTECODE=1"),
	}
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
	stuck := time.AfterFunc(time.Minute, func() { _ = w.cmd.Process.Signal(syscall.SIGABRT) }) // it says where its threads are
	defer stuck.Stop()
	w.reading.Wait()
	if err := w.cmd.Wait(); err != nil || w.stderr.Len() > 0 {
		t.Errorf("worker: %v\n%s", err, w.stderr.String())
	}
}

// said is a line of a worker.
type said struct {
	Effect  string         `json:"effect"`
	Work    []float64      `json:"work"`
	Errors  map[string]int `json:"errors"`
	Threads int            `json:"threads"`
	Sockets int            `json:"sockets"`
}

// book is what the workers said.
type book struct {
	mu      sync.Mutex
	effects map[string]bool
	work    []work
	ends    []said
}

// work is an interval on the machine's monotonic clock, in seconds.
type work struct {
	account           int
	begin, end, until float64
}

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
	case len(s.Work) == 4: //nolint:mnd // account, begin, end, until
		b.work = append(b.work, work{int(s.Work[0]), s.Work[1], s.Work[2], s.Work[3]})
	case s.Errors != nil:
		b.ends = append(b.ends, s)
	}
}

// tolerated is for how long work may be seen to continue after its lease.
const tolerated = 0.1

func (b *book) judge(t *testing.T, database string) {
	t.Helper()
	b.deposits(t, database)
	longest, overlap := b.overruns()
	errors := map[string]int{}
	for _, e := range b.ends {
		for name, n := range e.Errors {
			errors[name] += n
			if strings.HasPrefix(name, "unexpected") {
				t.Error(name)
			}
		}
		if e.Threads > 0 || e.Sockets > 0 {
			t.Errorf("a worker leaked %d threads and %d sockets", e.Threads, e.Sockets)
		}
	}
	if len(b.ends) != 3 {
		t.Errorf("%d workers came to their end, want 3", len(b.ends))
	}
	if longest > tolerated || overlap > tolerated {
		t.Errorf("work outlived its lease by %.3f s, and two workers were at one account for %.3f s", longest, overlap)
	}
	t.Logf("%d deposits under %d leases; work outlived its lease by %.3f s at most (below 0: it ended before); refused or failed: %v", len(b.effects), len(b.work), longest, errors)
}

// deposits compares the accounts with what was committed, and that with what the
// workers know to be.
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

// overruns is for how long work outlived its lease at most, and for how long two workers
// were at one account.
func (b *book) overruns() (longest, overlap float64) {
	longest, overlap = -workTTL.Seconds(), -workTTL.Seconds()
	slices.SortFunc(b.work, func(x, y work) int {
		if x.account != y.account {
			return x.account - y.account
		}
		return int((x.begin - y.begin) * 1e6) //nolint:mnd // microseconds
	})
	for i, w := range b.work {
		longest = max(longest, w.end-w.until)
		if i > 0 && b.work[i-1].account == w.account {
			overlap = max(overlap, b.work[i-1].end-w.begin)
		}
	}
	return longest, overlap
}
