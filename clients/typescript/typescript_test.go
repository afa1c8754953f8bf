// Package typescript_test runs the tests of the TypeScript client.
package typescript_test

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/clients/faults"
	"github.com/fencelock/fencelock/internal/testenv"
)

var runFor = flag.Duration("for", 25*time.Second, "how long TestSoakFaults takes")

// compiler is the version of tsc that made dist; others write some of it in another way.
const compiler = "Version 4.8"

var (
	pg         = map[string]string{"pg": "node-pg"}
	mysql      = map[string]string{"mysql": "node-mysql"}
	typescript = map[string]string{"typescript": "node-typescript"}
)

// The client's own tests.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	run(t, ".", nil, testenv.Node(t), "--test", "tests/client.test.mjs", "tests/testing.test.mjs")
}

// Elections, watches and slots on a real service.
func TestElections(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	run(t, ".", []string{"FENCELOCK_URL=http://" + faults.Start(t).Address()}, testenv.Node(t), "--test", "tests/elect.test.mjs")
}

func TestGuardHelper(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	env := []string{"NODE_PATH=" + testenv.NodeModules(t, pg), "DATABASE_URL=" + faults.Accounts(t)}
	run(t, ".", env, testenv.Node(t), "--test", "tests/guard.test.mjs")
}

func TestGuardHelperInMariaDB(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	env := []string{"NODE_PATH=" + testenv.NodeModules(t, mysql), "MARIADB_URL=" + faults.MariaAccounts(t), "MARIADB_EMPTY_URL=" + testenv.MariaDB(t).OwnerURL()}
	t.Log(run(t, ".", env, testenv.Node(t), "--test", "tests/mariadb.test.mjs"))
}

// tsc is a command that runs the compiler.
func tsc(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tsc")
	command := "#!/bin/sh\nexec '" + testenv.Node(t) + "' '" + filepath.Join(testenv.NodeModules(t, typescript), "typescript", "bin", "tsc") + "' \"$@\"\n"
	if err := os.WriteFile(file, []byte(command), 0o700); err != nil {
		t.Fatal(err)
	}
	return file
}

// What npm installs is what tsc --strict makes of the sources.
func TestDist(t *testing.T) {
	t.Parallel()
	tsc, dir := tsc(t), t.TempDir()
	run(t, ".", []string{"TSC=" + tsc}, "./build.sh", dir)
	if version := run(t, ".", nil, tsc, "--version"); !strings.HasPrefix(version, compiler) {
		t.Skipf("NOT RUN: dist is compared with what tsc of %s makes, and this is %s", compiler, version)
	}
	if out, err := exec.CommandContext(t.Context(), "diff", "-r", "dist", dir).CombinedOutput(); err != nil {
		t.Errorf("dist is not what build.sh makes of src: run it (%v)\n%s", err, out)
	}
}

// npm installs the folder without a network, and import, require and tsc --strict find the same in it.
func TestPackage(t *testing.T) {
	t.Parallel()
	tsc, dir := tsc(t), t.TempDir()
	install(t, dir)
	const says = "console.log(typeof Client, Object.keys(all).sort().join())"
	imported := run(t, dir, nil, testenv.Node(t), "--input-type=module", "-e", "import * as all from 'fencelock'; import { Client } from 'fencelock'; "+says)
	required := run(t, dir, nil, testenv.Node(t), "-e", "const all = require('fencelock'), { Client } = all; "+says)
	if imported != required || !strings.HasPrefix(imported, "function Client,") {
		t.Errorf("import gives %s, and require %s", imported, required)
	}
	for _, name := range []string{"types", "types-disposal"} {
		types, err := os.ReadFile("tests/" + name + ".ts")
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{".mts", ".cts"} {
			if err := os.WriteFile(filepath.Join(dir, name+kind), types, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	run(t, dir, nil, tsc, "--strict", "--noEmit", "--skipDefaultLibCheck", "--target", "ES2022", "--lib", "ES2022,DOM", "--module", "node16", "types.mts", "types.cts")
	run(t, dir, nil, tsc, "--strict", "--noEmit", "--skipDefaultLibCheck", "--target", "ES2022", "--lib", "ES2022,DOM", "--module", "node16", "types-disposal.mts", "types-disposal.cts")
	run(t, dir, nil, tsc, "--strict", "--noEmit", "--skipDefaultLibCheck", "--target", "ES2022", "--lib", "ES2022,DOM", "--module", "commonjs", "types.cts")
}

func install(t *testing.T, dir string) {
	t.Helper()
	folder, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	if npm, err := exec.LookPath("npm"); err == nil {
		run(t, dir, nil, npm, "install", "--offline", "--no-audit", "--no-fund", folder)
		return
	}
	t.Log("NOT RUN: npm install: there is no npm; the folder is linked, as npm does")
	modules := filepath.Join(dir, "node_modules")
	if err := os.Mkdir(modules, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(folder, filepath.Join(modules, "fencelock")); err != nil {
		t.Fatal(err)
	}
}

// The JavaScript of README.md runs as it is there.
func TestReadme(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var program strings.Builder
	for _, block := range strings.Split(string(page), "```js\n")[1:] {
		code, _, _ := strings.Cut(block, "```")
		program.WriteString(code)
	}
	program.WriteString("console.log((await pool.query('SELECT balance FROM accounts WHERE id = 1')).rows[0].balance);\nawait pool.end();\n")
	dir := t.TempDir()
	install(t, dir)
	modules := testenv.NodeModules(t, pg)
	if err := os.Symlink(filepath.Join(modules, "pg"), filepath.Join(dir, "node_modules", "pg")); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("http://127.0.0.1:8080", "http://"+faults.Start(t).Address(), "postgres://owner@localhost/shop", faults.Accounts(t)).Replace(program.String())
	if err := os.WriteFile(filepath.Join(dir, "readme.mjs"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := run(t, dir, []string{"NODE_PATH=" + modules}, testenv.Node(t), "readme.mjs"); strings.TrimSpace(said) != "15" {
		t.Errorf("it printed %q, want 15", said)
	}
}

// The client under faults of everything, see clients/faults.
func TestSoakFaults(t *testing.T) {
	worker := []string{testenv.Node(t), "tests/faults.mjs"}
	faults.Run(t, *runFor, [][]string{worker, worker, worker}, "NODE_PATH="+testenv.NodeModules(t, pg))
}

// A pair takes at most 1.2 times as long as one of a bare loop over fetch, in one run.
func TestSoakSpeed(t *testing.T) {
	testenv.NeedsServer(t)
	faults.Speed(t, 1.2, testenv.Node(t), "tests/speed.mjs")
}

// run runs a command, and returns what it wrote to its standard output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, stderr.String())
	}
	return string(out)
}
