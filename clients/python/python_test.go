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

func TestMain(m *testing.M) { testenv.Main(m) }

var runFor = flag.Duration("for", 40*time.Second, "how long TestSoakFaults takes")

// The client's own tests, with the Python that is the default here.
func TestPython(t *testing.T) {
	t.Parallel()
	clientTests(t, testenv.Pythons(t)[:1])
}

func TestNewestPython(t *testing.T) {
	testenv.Long(t, "what the newest Python here does in another way than the default one")
	t.Parallel()
	pythons := testenv.Pythons(t)
	clientTests(t, pythons[len(pythons)-1:])
}

// With every Python from 3.9 that is here.
func TestSoakPython(t *testing.T) {
	testenv.Soak(t, "a Python from 3.9 with which the client does not work")
	clientTests(t, testenv.Pythons(t))
}

// An exception at any traced line of an acquire, a block and an exit leaves no lease that is renewed: in threads, in
// greenlets, and on asyncio.
func TestInterruptions(t *testing.T) {
	testenv.Long(t, "a lease that lives for ever after an exception from outside")
	t.Parallel()
	python := testenv.PythonWith(t, map[string]string{"greenlet": "python3-greenlet"})
	unittest(t, python, []string{"FENCELOCK_PROGRAM=" + testenv.Program(t)}, "test_interrupted")
}

func clientTests(t *testing.T, pythons []testenv.Python) {
	t.Helper()
	for _, python := range pythons {
		for _, module := range []string{"test_core", "test_http", "test_client", "test_batch", "test_elect", "test_testing"} {
			t.Run(python.Version+" "+module, func(t *testing.T) {
				t.Parallel()
				unittest(t, python.Path, []string{"FENCELOCK_PROGRAM=" + testenv.Program(t)}, module)
			})
		}
	}
}

// libraries are what the guard's helpers know, as they are imported and as Debian packages.
var libraries = map[string]string{
	"psycopg": "python3-psycopg", "psycopg2": "python3-psycopg2", "sqlalchemy": "python3-sqlalchemy", "django": "python3-django",
	"asyncpg": "python3-asyncpg", "pymysql": "python3-pymysql", "MySQLdb": "python3-mysqldb",
}

func TestGuardHelpers(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	guardHelpers(t, nil, "test_guards")
}

func TestGuardHelpersWithPauses(t *testing.T) {
	testenv.Long(t, "a library for MariaDB whose paused holder keeps its rows; PyMySQL stands for them")
	t.Parallel()
	var modules []string
	classes := []string{"Mysqlclient", "SQLAlchemyMariaDB", "SQLAlchemySessionMariaDB", "DjangoMariaDB"}
	for _, class := range classes {
		modules = append(modules, "test_guards."+class+".test_a_holder_that_is_paused_is_put_out")
	}
	guardHelpers(t, []string{"FENCELOCK_TEST_PAUSED=" + strings.Join(classes, " ")}, modules...)
}

func guardHelpers(t *testing.T, env []string, modules ...string) {
	t.Helper()
	var names []string
	for name := range libraries {
		names = append(names, name)
	}
	slices.Sort(names)
	python := testenv.PythonWith(t, libraries)
	env = append(env, "DATABASE_URL="+faults.Accounts(t), "MARIADB_URL="+faults.MariaAccounts(t), "FENCELOCK_TEST_LIBRARIES="+strings.Join(names, " "))
	unittest(t, python, env, modules...)
}

// The package's types hold under mypy --strict.
func TestTypes(t *testing.T) {
	t.Parallel()
	testenv.Long(t, "a type that mypy refuses")
	mypy := testenv.Installed(t, "mypy", "mypy")
	cmd := exec.CommandContext(t.Context(), mypy, "--strict", "--cache-dir", t.TempDir(), "src/fencelock")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// pip builds and installs the folder, the wheel and the source distribution, in environments of their own, without a
// network and in a locale that is not UTF-8; an editable installation follows the sources. What a user of the package
// needs is in it.
func TestPackage(t *testing.T) {
	testenv.Long(t, "that pip cannot install the package")
	t.Parallel()
	python := testenv.PythonWith(t, map[string]string{"venv": "python3-venv", "ensurepip": "python3-venv", "hatchling": "python3-hatchling"})
	source, dist := filepath.Join(t.TempDir(), "source"), t.TempDir()
	run(t, ".", "cp", "-r", ".", source)
	run(t, source, "env", "LC_ALL=C", "PYTHONUTF8=0", python, "-m", "hatchling", "build", "-d", dist)
	sdist, wheel := filepath.Join(dist, "fencelock-0.1.0.tar.gz"), filepath.Join(dist, "fencelock-0.1.0-py3-none-any.whl")
	for name, args := range map[string][]string{"folder": {source}, "wheel": {wheel}, "sdist": {sdist}, "editable": {"-e", source}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			run(t, dir, python, "-m", "venv", "--system-site-packages", "venv") // the build backend is the system's
			venv := filepath.Join(dir, "venv", "bin", "python")
			run(t, dir, venv, append([]string{"-m", "pip", "install", "--no-index", "--no-build-isolation"}, args...)...)
			said := run(t, dir, venv, "-c", "import fencelock.aio, fencelock.guard, os, importlib.metadata as m; of = m.metadata('fencelock'); "+
				"print(m.version('fencelock'), fencelock.__version__, of['Requires-Python'], of['Author'], 'Typing :: Typed' in of.get_all('Classifier'), "+
				"any(u.startswith('Homepage, https://') for u in of.get_all('Project-URL')), '](..' in str(of), "+
				"any('LICENSE' in str(f) for f in m.files('fencelock')), os.path.exists(os.path.join(os.path.dirname(fencelock.__file__), 'py.typed')))")
			if want := "0.1.0 0.1.0 >=3.9 The fencelock authors True True False True True"; strings.TrimSpace(said) != want { //nolint:dupword // answers to questions
				t.Errorf("installed %s, want %s", said, want)
			}
			run(t, dir, venv, "-m", "pip", "uninstall", "-y", "fencelock") // which the wheel's RECORD tells
			run(t, dir, venv, "-c", "import importlib.util; assert importlib.util.find_spec('fencelock') is None")
		})
	}
	if said := run(t, dist, "tar", "-tzf", sdist); !strings.Contains(said, "/LICENSE\n") || strings.Contains(said, "/tests/") {
		t.Errorf("the source distribution has\n%s", said)
	}
	if want, err := os.ReadFile("../../LICENSE"); err != nil || run(t, ".", "cat", "LICENSE") != string(want) {
		t.Errorf("LICENSE is not the project's (%v)", err)
	}
}

// Two builds of the same sources at different times and places are the same bytes.
func TestPackageIsReproducible(t *testing.T) {
	t.Parallel()
	testenv.Long(t, "a wheel that differs from build to build")
	python := testenv.PythonWith(t, map[string]string{"hatchling": "python3-hatchling"})
	var sums []string
	for _, touched := range []string{"2020-01-01", "2024-06-01"} {
		source, dist := filepath.Join(t.TempDir(), "source"), t.TempDir()
		run(t, ".", "cp", "-r", ".", source)
		run(t, source, "find", ".", "-type", "f", "-exec", "touch", "-d", touched, "{}", "+")
		run(t, source, python, "-m", "hatchling", "build", "-d", dist)
		sums = append(sums, run(t, dist, "sha256sum", "fencelock-0.1.0.tar.gz", "fencelock-0.1.0-py3-none-any.whl"))
	}
	if sums[0] != sums[1] {
		t.Errorf("one build has\n%s and another\n%s", sums[0], sums[1])
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
	testenv.Soak(t, "a Python client that became slow")
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
	t.Parallel()
	server := testenv.StartFencelock(t)
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
	text := strings.NewReplacer("not lease.wait_lost(timeout=10)", "lease.wait_lost(timeout=0)", "http://127.0.0.1:8080", server.URL(), "postgres://owner@localhost/shop", faults.Accounts(t)).Replace(program.String())
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
	server := testenv.StartFencelock(t, "FENCELOCK_TLS_CERT_FILE="+cert, "FENCELOCK_TLS_KEY_FILE="+key)
	for i, python := range testenv.Pythons(t) {
		t.Run(python.Version, func(t *testing.T) {
			if i > 0 {
				testenv.Long(t, "a Python beside the default one whose TLS the client does not know")
			}
			t.Parallel()
			if said := run(t, ".", python.Path, "-B", "-W", "error::ResourceWarning", "tests/tls.py", "https://"+server.Addr(), cert); strings.TrimSpace(said) != "fine" {
				t.Error(said)
			}
		})
	}
}

// The client under faults of everything, see clients/faults.
func TestSoakFaults(t *testing.T) {
	testenv.Soak(t, "a Python client that works late, or leaks, under faults")
	worker := []string{testenv.PythonWith(t, libraries), "-X", "faulthandler", "tests/faults.py"}
	faults.Run(t, *runFor, [][]string{append(worker[:4:4], "sync"), append(worker[:4:4], "sync"), append(worker[:4:4], "aio")}, "PYTHONDONTWRITEBYTECODE=1")
}
