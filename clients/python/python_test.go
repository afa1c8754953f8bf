// Package python_test runs the tests of the Python client.
package python_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/clients/faults"
	"github.com/fencelock/fencelock/internal/testenv"
)

var runFor = flag.Duration("for", 40*time.Second, "how long TestSoakFaults takes")

// The client's own tests, with the Python that is the default here and with the newest.
func TestPython(t *testing.T) {
	pythons := testenv.Pythons(t)
	clientTests(t, slices.Compact([]testenv.Python{pythons[0], pythons[len(pythons)-1]}))
}

// With every Python from 3.9 that is here.
func TestSoakPython(t *testing.T) { clientTests(t, testenv.Pythons(t)) }

func clientTests(t *testing.T, pythons []testenv.Python) {
	t.Helper()
	for _, python := range pythons {
		t.Run(python.Version, func(t *testing.T) {
			t.Parallel()
			unittest(t, python.Path, nil, "test_core", "test_http", "test_client", "test_batch", "test_elect", "test_testing")
		})
	}
}

// libraries are what the guard's helpers know, as they are imported and as Debian packages.
var libraries = map[string]string{
	"psycopg": "python3-psycopg", "psycopg2": "python3-psycopg2", "sqlalchemy": "python3-sqlalchemy", "django": "python3-django",
	"asyncpg": "python3-asyncpg", "pymysql": "python3-pymysql", "MySQLdb": "python3-mysqldb",
}

func TestGuardHelpers(t *testing.T) {
	testenv.NeedsServer(t)
	var names []string
	for name := range libraries {
		names = append(names, name)
	}
	slices.Sort(names)
	python := testenv.PythonWith(t, libraries)
	unittest(t, python, []string{"DATABASE_URL=" + faults.Accounts(t), "MARIADB_URL=" + faults.MariaAccounts(t), "FENCELOCK_TEST_LIBRARIES=" + strings.Join(names, " ")}, "test_guards")
}

// The package's types hold under mypy --strict.
func TestTypes(t *testing.T) {
	mypy := testenv.Installed(t, "mypy", "mypy")
	cmd := exec.CommandContext(t.Context(), mypy, "--strict", "--cache-dir", t.TempDir(), "src/fencelock")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// pip installs the folder and the source distribution by the README's words, in an empty
// environment and without a network.
func TestPackage(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	run(t, ".", "cp", "-r", ".", source)
	python := testenv.PythonWith(t, map[string]string{"venv": "python3-venv", "ensurepip": "python3-venv"})
	run(t, source, python, "-c", "import build_backend, os; os.mkdir('dist'); build_backend.build_sdist('dist')")
	dir := t.TempDir()
	run(t, dir, python, "-m", "venv", "venv")
	venv := filepath.Join(dir, "venv", "bin", "python")
	for _, what := range []string{source, filepath.Join(source, "dist", "fencelock-0.1.0.tar.gz")} {
		run(t, dir, venv, "-m", "pip", "install", "--no-index", what)
		run(t, dir, venv, "-m", "pip", "check")
		said := run(t, dir, venv, "-c", "import fencelock.aio, fencelock.guard, os, importlib.metadata as m; "+
			"print(m.version('fencelock'), m.metadata('fencelock')['Requires-Python'], os.path.exists(os.path.join(os.path.dirname(fencelock.__file__), 'py.typed')))")
		if strings.TrimSpace(said) != "0.1.0 >=3.9 True" {
			t.Errorf("installed from %s: %s", filepath.Base(what), said)
		}
		run(t, dir, venv, "-m", "pip", "uninstall", "-y", "fencelock") // which the wheel's RECORD tells
		run(t, dir, venv, "-c", "import importlib.util; assert importlib.util.find_spec('fencelock') is None")
	}
}

func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// A pair costs at most 1.3 times one of a bare loop over http.client, in one run.
func TestSoakSpeed(t *testing.T) {
	testenv.NeedsServer(t)
	faults.Speed(t, 1.3, testenv.Pythons(t)[0].Path, "tests/speed.py")
}

func unittest(t *testing.T, python string, env []string, modules ...string) {
	t.Helper()
	args := []string{"-W", "error::ResourceWarning", "-m", "unittest", "-v"}
	for _, module := range modules {
		args = append(args, "tests."+module)
	}
	cmd := exec.CommandContext(t.Context(), python, args...)
	cmd.Env = append(append(os.Environ(), "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1"), env...)
	out, err := cmd.CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "NOT RUN") {
			t.Log(strings.TrimSpace(line))
		}
		if strings.Contains(line, "error ignored") {
			t.Error(strings.TrimSpace(line))
		}
	}
	if err != nil {
		t.Errorf("%s: %v\n%s", cmd, err, out)
	}
}

// The Python of README.md runs as it is there.
func TestReadme(t *testing.T) {
	testenv.NeedsServer(t)
	server := faults.Start(t)
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	for _, block := range strings.Split(string(page), "```python\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		program.WriteString(code)
	}
	program.WriteString("print(conn.execute('SELECT balance FROM accounts WHERE id = 1').fetchone()[0])\nconn.close()\nclient.close()\n")
	// The leader of the page leads for good; here it resigns at once.
	text := strings.NewReplacer("not lease.wait_lost(timeout=10)", "lease.wait_lost(timeout=0)", "http://127.0.0.1:8080", "http://"+server.Address(), "postgres://owner@localhost/shop", faults.Accounts(t)).Replace(program.String())
	file := filepath.Join(t.TempDir(), "readme.py")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	python := testenv.PythonWith(t, libraries)
	if said := run(t, ".", "env", "PYTHONPATH=src", "PYTHONDONTWRITEBYTECODE=1", python, "-W", "error::ResourceWarning", file); strings.TrimSpace(said) != "15" {
		t.Errorf("it printed %q, want 15", said)
	}
}

// Both clients speak TLS, and trust no server that their context does not.
func TestTLS(t *testing.T) {
	testenv.NeedsServer(t)
	cert, key := testenv.Certificate(t)
	server := faults.Start(t, "FENCELOCK_TLS_CERT_FILE="+cert, "FENCELOCK_TLS_KEY_FILE="+key)
	for _, python := range testenv.Pythons(t) {
		t.Run(python.Version, func(t *testing.T) {
			t.Parallel()
			if said := run(t, ".", python.Path, "-B", "-W", "error::ResourceWarning", "tests/tls.py", "https://"+server.Address(), cert); strings.TrimSpace(said) != "fine" {
				t.Error(said)
			}
		})
	}
}

// The client under faults of everything, see clients/faults.
func TestSoakFaults(t *testing.T) {
	worker := []string{testenv.PythonWith(t, libraries), "-X", "faulthandler", "tests/faults.py"}
	faults.Run(t, *runFor, [][]string{append(worker[:4:4], "sync"), append(worker[:4:4], "sync"), append(worker[:4:4], "aio")}, "PYTHONDONTWRITEBYTECODE=1")
}
