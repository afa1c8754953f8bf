// Package typescript_test runs the tests of the TypeScript client.
package typescript_test

import (
	"encoding/json"
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

func TestMain(m *testing.M) { testenv.Main(m) }

var runFor = flag.Duration("for", 25*time.Second, "how long TestSoakFaults takes")

// compiler is the version of tsc that made dist. Other versions write some of the code in another way.
const compiler = "Version 4.8"

var (
	pg         = map[string]string{"pg": "node-pg"}
	mysql      = map[string]string{"mysql": "node-mysql"}
	typescript = map[string]string{"typescript": "node-typescript"}
)

// The client's own tests.
func TestTypeScript(t *testing.T) {
	t.Parallel()
	run(t, ".", nil, testenv.Node(t), "--test", "tests/client.test.mjs")
}

// fencelock/testing, the service for the tests of applications.
func TestTesting(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	run(t, ".", []string{"FENCELOCK_PROGRAM=" + testenv.Program(t)}, testenv.Node(t), "--test", "tests/testing.test.mjs")
}

// Elections, watches and slots on a real service.
func TestElections(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	run(t, ".", []string{"FENCELOCK_URL=" + testenv.StartFencelock(t).URL()}, testenv.Node(t), "--test", "tests/elect.test.mjs")
}

func TestGuardHelper(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	env := []string{"NODE_PATH=" + testenv.NodeModules(t, pg), "DATABASE_URL=" + faults.Accounts(t)}
	run(t, ".", env, testenv.Node(t), "--test", "tests/guard.test.mjs")
}

func TestGuardHelperInMariaDB(t *testing.T) {
	testenv.Long(t, "a mistake of the TypeScript guard in MariaDB alone")
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

// The committed dist, which npm installs, is what tsc --strict makes of the sources.
func TestDist(t *testing.T) {
	t.Parallel()
	testenv.Long(t, "a committed dist that is not what its source compiles to")
	tsc, dir := tsc(t), t.TempDir()
	run(t, ".", []string{"TSC=" + tsc}, "./build.sh", dir)
	if version := run(t, ".", nil, tsc, "--version"); !strings.HasPrefix(version, compiler) {
		t.Skipf("NOT RUN: dist is compared with what tsc of %s makes, and this is %s", compiler, version)
	}
	if out, err := exec.CommandContext(t.Context(), "diff", "-r", "dist", dir).CombinedOutput(); err != nil {
		t.Errorf("dist is not what build.sh makes of src: run it (%v)\n%s", err, out)
	}
}

// npm installs the folder, and the tarball that it packs, without a network. From either, import and require give the same
// classes, and the compiler finds types in both module systems, with the older module resolution, and without the types of
// the DOM and of Node.
func TestPackage(t *testing.T) {
	testenv.Long(t, "that npm cannot install the package")
	t.Parallel()
	tsc := tsc(t)
	folder, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	packed := map[string]string{"the folder": folder}
	if npm, err := exec.LookPath("npm"); err == nil {
		into := t.TempDir()
		packed["a tarball"] = filepath.Join(into, strings.TrimSpace(run(t, ".", nil, npm, "pack", "--silent", "--pack-destination", into)))
	}
	for name, source := range packed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			isInstalled(t, tsc, source)
		})
	}
}

func isInstalled(t *testing.T, tsc, source string) {
	t.Helper()
	dir := t.TempDir()
	install(t, dir, source)
	for _, file := range []string{"LICENSE", "README.md", "package.json", "src/index.ts"} {
		if _, err := os.Stat(filepath.Join(dir, "node_modules", "fencelock", file)); err != nil {
			t.Error(err)
		}
	}
	var about struct {
		Homepage   string            `json:"homepage"`
		Repository map[string]string `json:"repository"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "node_modules", "fencelock", "package.json"))
	if err == nil {
		err = json.Unmarshal(text, &about)
	}
	if err != nil || about.Homepage == "" || about.Repository["url"] == "" {
		t.Errorf("package.json says %+v, %v", about, err)
	}
	const same = `for (const name of ['fencelock', 'fencelock/testing']) {
		const all = await import(name), required = (await import('node:module')).createRequire(import.meta.url)(name);
		if (Object.keys(all).length < 1 || Object.keys(all).join() !== Object.keys(required).sort().join()) throw new Error(Object.keys(all) + ' and ' + Object.keys(required));
		for (const [key, value] of Object.entries(all)) if (required[key] !== value) throw new Error(key + ' is two things');
	}`
	run(t, dir, nil, testenv.Node(t), "--input-type=module", "-e", same)
	for _, name := range []string{"types", "types-disposal", "types-shared", "types-alone"} {
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
	const both = `import { locks as a } from './types-shared.cjs'; import { locks as b } from './types-shared.mjs'; let c = a; c = b; export { c };`
	if err := os.WriteFile(filepath.Join(dir, "both.mts"), []byte(both), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{
		"--lib ES2022,DOM --module node16 types.mts types.cts types-shared.mts types-shared.cts both.mts",
		"--lib ES2022,DOM --module node16 types-disposal.mts types-disposal.cts",
		"--lib ES2022,DOM --module commonjs types.cts types-shared.cts",
		"--lib ES2022 --module node16 types-alone.mts types-alone.cts",
		"--lib ES2022 --module commonjs types-alone.cts",
	} {
		run(t, dir, nil, tsc, append([]string{"--strict", "--noEmit", "--skipDefaultLibCheck", "--target", "ES2022"}, strings.Fields(args)...)...)
	}
}

// install installs a folder, or a tarball, as an application does.
func install(t *testing.T, dir, source string) {
	t.Helper()
	if npm, err := exec.LookPath("npm"); err == nil {
		run(t, dir, nil, npm, "install", "--offline", "--no-audit", "--no-fund", source)
		return
	}
	t.Log("NOT RUN: npm install: there is no npm; the folder is linked, as npm does")
	modules := filepath.Join(dir, "node_modules")
	if err := os.Mkdir(modules, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(source, filepath.Join(modules, "fencelock")); err != nil {
		t.Fatal(err)
	}
}

// The JavaScript of README.md runs as it is written there.
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
	folder, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	install(t, dir, folder)
	modules := testenv.NodeModules(t, pg)
	if err := os.Symlink(filepath.Join(modules, "pg"), filepath.Join(dir, "node_modules", "pg")); err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("http://127.0.0.1:8080", testenv.StartFencelock(t).URL(), "postgres://owner@localhost/shop", faults.Accounts(t)).Replace(program.String())
	if err := os.WriteFile(filepath.Join(dir, "readme.mjs"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if said := run(t, dir, []string{"NODE_PATH=" + modules}, testenv.Node(t), "readme.mjs"); strings.TrimSpace(said) != "15" {
		t.Errorf("it printed %q, want 15", said)
	}
}

// The client while servers and connections fail, see clients/faults.
func TestSoakFaults(t *testing.T) {
	testenv.Soak(t, "a TypeScript client that works late, or leaks, under faults")
	worker := []string{testenv.Node(t), "tests/faults.mjs"}
	faults.Run(t, *runFor, [][]string{worker, worker, worker}, "NODE_PATH="+testenv.NodeModules(t, pg))
}

// An acquire with its release takes at most 1.2 times as long as in a bare loop over fetch, measured in the same run.
func TestSoakSpeed(t *testing.T) {
	testenv.Soak(t, "a TypeScript client that became slow")
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
