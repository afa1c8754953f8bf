package examples_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// program runs one example: its command line up to TOKEN and AMOUNT, which
// args appends, and what its environment needs besides DATABASE_URL.
type program struct {
	command []string
	args    func(url, token, amount string) []string
	env     []string
}

func plainArgs(_, token, amount string) []string { return []string{token, amount} }

func TestGuardExamples(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	for name, find := range map[string]func(*testing.T) program{
		"psql": func(t *testing.T) program {
			t.Helper()
			return program{command: []string{findPsql(t)}, args: func(url, token, amount string) []string {
				return []string{url, "-X", "-v", "token=" + token, "-v", "amount=" + amount, "-f", "guard-psql/deposit.sql"}
			}}
		},
		"go": func(t *testing.T) program {
			t.Helper()
			return program{command: []string{testenv.Build(t, "./guard-go")}, args: plainArgs}
		},
		"python": func(t *testing.T) program {
			t.Helper()
			return program{command: []string{findPython(t), "guard-python/deposit.py"}, args: plainArgs}
		},
		"node": func(t *testing.T) program {
			t.Helper()
			return program{command: []string{"node", "guard-node/deposit.js"}, args: plainArgs, env: []string{"NODE_PATH=" + findNodePg(t)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "go" && name != "psql" {
				testenv.Long(t, "an example of the guard in Python or Node that does wrong although the client's own tests pass")
			}
			t.Parallel()
			deposits(t, find(t))
		})
	}
}

func deposits(t *testing.T, p program) {
	t.Helper()
	url := prepare(t, "setup.sql")
	for _, step := range []struct {
		token string
		code  int
		says  string
	}{
		{"34", 0, "balance is 10"},
		{"34", 0, "balance is 20"},
		{"33", 3, "34"}, // stale; the message names the highest token
		{"35", 0, "balance is 30"},
		{"34", 3, "35"},
	} {
		code, said := p.run(t, url, step.token, "10")
		if code != step.code || !strings.Contains(said, step.says) {
			t.Errorf("token %s: exit code %d, want %d and %q in:\n%s", step.token, code, step.code, step.says, said)
		}
	}
}

func prepare(t *testing.T, file string) string {
	t.Helper()
	url := testenv.Postgres(t).OwnerURL()
	if err := pgguard.Install(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	setup, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	// A database's owner may not write to its schema public before PostgreSQL 15.
	if _, err := conn.Exec(t.Context(), "CREATE SCHEMA shop; SET search_path = shop; "+string(setup)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), fmt.Sprintf("ALTER DATABASE %s SET search_path = shop", conn.Config().Database)); err != nil {
		t.Fatal(err)
	}
	return url
}

func (p program) run(t *testing.T, url, token, amount string) (code int, said string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), p.command[0], append(p.command[1:len(p.command):len(p.command)], p.args(url, token, amount)...)...)
	cmd.Env = append(append(os.Environ(), "DATABASE_URL="+url), p.env...)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v", p.command[0], err)
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

func findPsql(t *testing.T) string {
	t.Helper()
	if found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/psql"); len(found) > 0 {
		return found[len(found)-1]
	}
	return testenv.Installed(t, "psql", "postgresql-client")
}

// findPython finds a Python with psycopg 3.
func findPython(t *testing.T) string {
	t.Helper()
	return testenv.PythonWith(t, map[string]string{"psycopg": "python3-psycopg"})
}

// findNodePg finds a folder in which node finds pg.
func findNodePg(t *testing.T) string {
	t.Helper()
	return testenv.NodeModules(t, map[string]string{"pg": "node-pg"})
}
