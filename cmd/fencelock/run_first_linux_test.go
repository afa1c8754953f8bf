package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// As the first process of a container, run also waits for orphaned processes, and still exits with the command's
// code.
func TestRunAsTheFirstProcess(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a process namespace needs root")
	}
	p := start(t)
	const script = `test $PPID = 1 || exit 8
for i in $(seq 30); do (sh -c 'sleep 0.01' &); (setsid sh -c 'exit 3' &); done
for i in $(seq 200); do
  zombies=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ') Z 1 ')
  sleeping=$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c '(sleep)')
  test $zombies$sleeping = 00 && exit 7
  sleep 0.05
done
exit 9`
	for range 5 {
		cmd := exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--mount-proc",
			testenv.Program(t), "run", "--url", p.url, "r", "--", "sh", "-c", script)
		out, err := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != 7 {
			t.Fatalf("exit code %d (9: zombies are left): %v\n%s", code, err, out)
		}
	}
}

// The command under run gets the variables of clients, and neither the server's secrets nor its caller's.
func TestRunKeepsSecrets(t *testing.T) {
	t.Parallel()
	p := start(t)
	got := p.tool("", []string{
		"FENCELOCK_DATABASE_URL=postgres://u:password@db/x", "FENCELOCK_PROOF_KEY_FILE=/secret", "FENCELOCK_LEASE_KEY_FILE=/secret",
		"FENCELOCK_REDIS_ADDRS=redis://:password@r", "FENCELOCK_STORE=etcd://u:password@e", "FENCELOCK_BEARER_TOKEN=password", "OTHER=1",
	}, "run", "r", "--", "env")
	got.wants(t, "run", 0, "OTHER=1", "")
	if strings.Contains(got.out, "password") || strings.Contains(got.out, "/secret") || !strings.Contains(got.out, "FENCELOCK_URL=") {
		t.Error(got.out)
	}
}
