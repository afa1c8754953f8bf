package gocronlock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/client/gocronlock"
)

// program builds the service once for all tests.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gocronlock")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "fencelock")
	build := exec.Command("go", "build", "-o", path, "./cmd/fencelock")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// startService runs the real service, and returns its URL.
func startService(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts a server")
	}
	program, err := program()
	if err != nil {
		t.Fatal(err)
	}
	serve := exec.Command(program, "serve")
	serve.Dir = t.TempDir()
	serve.Env = []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0"}
	stderr, err := serve.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = serve.Process.Kill(); _ = serve.Wait() })
	lines := bufio.NewScanner(stderr)
	var first struct {
		Addr string `json:"addr"`
	}
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &first) != nil || first.Addr == "" {
		t.Fatalf("the first line does not say where it listens: %s", lines.Text())
	}
	go func() {
		for lines.Scan() { // until it ends
		}
	}()
	url := "http://" + first.Addr
	eventually(t, "the service is ready", func() bool {
		resp, err := http.Get(url + "/readyz") //nolint:noctx // a test
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return url
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		}
	}
}

func connect(t *testing.T, url string) *client.Client {
	t.Helper()
	locks, err := client.New([]string{url})
	if err != nil {
		t.Fatal(err)
	}
	return locks
}

// schedule runs a job every 100 ms on a scheduler.
func schedule(t *testing.T, job func(), opt gocron.SchedulerOption) {
	t.Helper()
	// A scheduler that has just skipped a job waits for the whole of its stop time.
	s, err := gocron.NewScheduler(opt, gocron.WithStopTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.NewJob(gocron.DurationJob(100*time.Millisecond), gocron.NewTask(job), gocron.WithName("job")); err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { _ = s.Shutdown() })
}

// Three schedulers with one lock run a job one at a time, and only once while the lock is kept.
func TestLocker(t *testing.T) {
	url := startService(t)
	var mu sync.Mutex
	running, ran := 0, []time.Time{}
	const kept = time.Second
	for range 3 {
		locker := gocronlock.NewLocker(connect(t, url), "jobs/", client.TTL(5*time.Second), client.MinHold(kept))
		schedule(t, func() {
			mu.Lock()
			running++
			ran = append(ran, time.Now())
			if running > 1 {
				t.Error("two at once")
			}
			mu.Unlock()
			time.Sleep(20 * time.Millisecond)
			mu.Lock()
			running--
			mu.Unlock()
		}, gocron.WithDistributedLocker(locker))
	}
	eventually(t, "three runs", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ran) >= 3
	})
	mu.Lock()
	defer mu.Unlock()
	for i := range ran[1:] {
		if pause := ran[i+1].Sub(ran[i]); pause < kept*9/10 {
			t.Errorf("run %d came %s after the one before", i+2, pause)
		}
	}
}

// A lock lasts as long as its job, which may be longer than the TTL, and ends with it.
func TestLockIsKeptAlive(t *testing.T) {
	url := startService(t)
	locker := gocronlock.NewLocker(connect(t, url), "jobs/", client.TTL(time.Second))
	ctx, cancel := context.WithCancel(t.Context())
	lock, err := locker.Lock(ctx, "long")
	if err != nil {
		t.Fatal(err)
	}
	cancel() // the scheduler is shut down, and lets the job end
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		if _, err := locker.Lock(t.Context(), "long"); !errors.Is(err, client.ErrHeld) {
			t.Fatalf("a second one: %v", err)
		}
	}
	if err := lock.Unlock(ctx); err != nil {
		t.Fatal(err)
	}
	again, err := locker.Lock(t.Context(), "long")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// One scheduler leads. When it resigns, the next one leads, with a larger token.
func TestElector(t *testing.T) {
	url := startService(t)
	type scheduler struct {
		*gocronlock.Elector
		resign context.CancelFunc
		ended  chan error
	}
	var all []*scheduler
	runs := make(chan int, 1000)
	for i := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		s := &scheduler{gocronlock.NewElector(connect(t, url), "scheduler", client.TTL(5*time.Second)), cancel, make(chan error, 1)}
		all = append(all, s)
		go func() { s.ended <- s.Run(ctx) }()
		schedule(t, func() { runs <- i }, gocron.WithDistributedElector(s.Elector))
	}
	leader := func() (leads int) {
		eventually(t, "one leads", func() bool {
			n := 0
			for i, s := range all {
				if s.IsLeader(t.Context()) == nil {
					n, leads = n+1, i
				}
			}
			if n > 1 {
				t.Fatalf("%d lead", n)
			}
			return n == 1
		})
		return leads
	}
	first := leader()
	lease, err := all[first].Lease()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if ran := <-runs; ran != first {
			t.Errorf("scheduler %d ran the job, and %d leads", ran, first)
		}
	}
	all[first].resign()
	if err := <-all[first].ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := all[first].IsLeader(t.Context()); !errors.Is(err, gocronlock.ErrNotLeader) {
		t.Error(err)
	}
	second := leader()
	next, err := all[second].Lease()
	if err != nil || second == first || next.Token() <= lease.Token() {
		t.Errorf("%d leads under %v after %d under %v: %v", second, next, first, lease, err)
	}
}
