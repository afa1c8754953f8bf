package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Of the jobs in a queue each is done once, and those of an account in their order, though a worker is killed and another frozen
// for longer than its lease lives.
func TestQueue(t *testing.T) {
	testenv.Long(t, "an example of a queue that does a job twice")
	testenv.NeedsServer(t)
	t.Parallel()
	const jobs = 60
	db, database := postgresOf(t, "queue-node/jobs.sql")
	query := func(text string, args ...any) (n int) {
		t.Helper()
		if err := db.QueryRowContext(t.Context(), text, args...).Scan(&n); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return n
	}
	query("WITH made AS (INSERT INTO jobs (account, amount) SELECT 1 + n % 3, n FROM generate_series(1, $1) n RETURNING 1) SELECT count(*) FROM made", jobs)
	env := append(nodeModules(t, map[string]string{"pg": "node-pg"}), "DATABASE_URL="+database, "FENCELOCK_URL="+serve(t), fmt.Sprint("LEASE_TTL=", webTTL.Seconds()))
	worker := func() *os.Process {
		cmd, said := exec.Command(testenv.Node(t), "queue-node/worker.js"), &testenv.Buffer{}
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = said, said
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("a worker said:\n%s", said)
			}
		})
		return cmd.Process
	}
	done := func(want int) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() error {
			if n := query("SELECT count(*) FROM jobs WHERE done_under IS NOT NULL"); n < want {
				return fmt.Errorf("%d jobs are done", n)
			}
			return nil
		})
	}
	frozen, killed := worker(), worker()
	done(5)
	_ = frozen.Signal(syscall.SIGSTOP)
	over := time.After(webTTL + webTTL/4)
	_ = killed.Kill()
	worker()
	<-over
	done(jobs / 3)
	_ = frozen.Signal(syscall.SIGCONT)
	done(jobs)
	if n := query("SELECT count(*) FROM accounts a WHERE balance <> (SELECT sum(amount) FROM jobs WHERE account = a.id)"); n > 0 {
		t.Errorf("%d accounts differ from their jobs", n)
	}
	if n := query("SELECT count(*) FROM (SELECT done_under < lag(done_under) OVER (PARTITION BY account ORDER BY id) AS early FROM jobs) j WHERE early"); n > 0 {
		t.Errorf("%d jobs were done before an earlier one of their account", n)
	}
}

// nodeModules is the environment in which Node finds the client, and modules of Debian's packages.
func nodeModules(t *testing.T, packages map[string]string) (env []string) {
	t.Helper()
	own := t.TempDir()
	source, err := filepath.Abs("../clients/typescript")
	if err == nil {
		err = os.Symlink(source, filepath.Join(own, "fencelock")) // as npm install does with a folder
	}
	if err != nil {
		t.Fatal(err)
	}
	return []string{"NODE_PATH=" + testenv.NodeModules(t, packages) + ":" + own}
}
