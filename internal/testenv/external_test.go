package testenv

import (
	"bufio"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// watched is a test within a test: its failure is recorded, not reported.
type watched struct {
	testing.TB
	failure string
}

func (w *watched) Fatal(args ...any) {
	w.failure = fmt.Sprint(args...)
	runtime.Goexit()
}

func (w *watched) Fatalf(format string, args ...any) { w.Fatal(fmt.Sprintf(format, args...)) }

// failure runs f as a test of its own and returns what it failed with, or "".
func failure(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	w := &watched{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(w)
	}()
	<-done
	return w.failure
}

func TestEnvironmentRedis(t *testing.T) {
	own := StartRedisN(t, 2)
	set(t, own[1], "k", "1")
	t.Setenv(EnvRedisAddrs, own[0].Addr()+", "+own[1].Addr())
	t.Run("is emptied", func(t *testing.T) {
		given := StartRedisN(t, 2)
		if given[0].Addr() != own[0].Addr() || given[1].Addr() != own[1].Addr() {
			t.Errorf("got %s and %s", given[0].Addr(), given[1].Addr())
		}
		if got := get(t, given[1], "k"); got != "" {
			t.Errorf("it has %q", got)
		}
	})
	t.Run("goes to one test at a time", func(t *testing.T) {
		StartRedis(t)
		if _, err := lockAddrs(t, 2, []string{own[0].Addr(), own[1].Addr()}); err == nil {
			t.Error("a server is given to two tests")
		}
		if _, err := lockAddrs(t, 1, []string{own[0].Addr(), own[1].Addr()}); err != nil {
			t.Error("an idle server is not given to a test:", err)
		}
	})
	for name, f := range map[string]func(testing.TB){
		"Kill":     func(t testing.TB) { StartRedis(t).Kill() },
		"Restart":  func(t testing.TB) { StartRedis(t).Restart() },
		"Freeze":   func(t testing.TB) { StartRedis(t).Freeze() },
		"Wipe":     func(t testing.TB) { StartRedis(t).Wipe() },
		"Promote":  func(t testing.TB) { StartRedis(t).Promote() },
		"options":  func(t testing.TB) { StartRedis(t, WithPersistence(PersistRDB)) },
		"too many": func(t testing.TB) { StartRedisN(t, 3) },
	} {
		t.Run(name+" fails the test", func(t *testing.T) {
			if got := failure(t, f); !strings.Contains(got, EnvRedisAddrs) {
				t.Errorf("failed with %q, which does not name %s", got, EnvRedisAddrs)
			}
		})
	}
}

func TestEnvironmentPostgres(t *testing.T) {
	own := Postgres(t)
	t.Setenv(EnvDatabaseURL, own.admin)
	given := Postgres(t)
	execSQL(t, given.OwnerURL(), "CREATE TABLE x (n int)")
	if got := failure(t, func(t testing.TB) { StartPostgres(t) }); !strings.Contains(got, EnvDatabaseURL) {
		t.Errorf("a private server failed with %q", got)
	}
}

func TestSharedPostgresIsNotToBeKilled(t *testing.T) {
	NeedsServer(t)
	if got := failure(t, func(t testing.TB) { Postgres(t).Kill() }); !strings.Contains(got, "StartPostgres") {
		t.Errorf("failed with %q", got)
	}
}

func TestFilesOfARunningNodeAreNotToBeChanged(t *testing.T) {
	NeedsServer(t)
	if got := failure(t, func(t testing.TB) { StartRedis(t).TruncateAOF(1) }); !strings.Contains(got, "Kill it first") {
		t.Errorf("failed with %q", got)
	}
}

func TestEventuallyReportsTheLastError(t *testing.T) {
	n := 0
	got := failure(t, func(t testing.TB) {
		Eventually(t, 50*time.Millisecond, func() error { n++; return fmt.Errorf("look %d", n) })
	})
	if n < 2 || !strings.Contains(got, fmt.Sprintf("look %d", n)) {
		t.Errorf("after %d looks: %q", n, got)
	}
}

func TestReservedPortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 50 {
		port, release, err := reservePort()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		if seen[port] {
			t.Fatalf("port %d twice", port)
		}
		seen[port] = true
	}
}

// envDoomed makes this test binary the process that dies in TestServersDieWithTheProcess.
const envDoomed = "FENCELOCK_TESTENV_DOOMED"

// TestServersDieWithTheProcess kills a test process that has servers, one of
// them frozen, and sees that nothing is left.
func TestServersDieWithTheProcess(t *testing.T) {
	if os.Getenv(envDoomed) != "" {
		doomed(t)
	}
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), envDoomed+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var dir string
	var addrs [3]string
	if _, err := fmt.Fscanln(bufio.NewReader(out), &dir, &addrs[0], &addrs[1], &addrs[2]); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	Eventually(t, exitWithin, func() error {
		for _, addr := range addrs {
			if conn, err := net.Dial("tcp", addr); err == nil {
				_ = conn.Close()
				return fmt.Errorf("%s still listens", addr)
			}
		}
		if _, err := os.Stat(dir); err == nil {
			return fmt.Errorf("%s is still there", dir)
		}
		return nil
	})
}

// doomed starts servers, says where they are, and waits for its end.
func doomed(t *testing.T) {
	running, frozen := StartRedis(t), StartRedis(t)
	frozen.Freeze()
	folder, err := home()
	if err != nil {
		t.Fatal(err)
	}
	pg, err := url.Parse(Postgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Println(folder.path, running.Addr(), frozen.Addr(), pg.Host)
	select {}
}
