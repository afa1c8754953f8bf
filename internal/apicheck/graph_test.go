package apicheck_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

const product = "github.com/fencelock/fencelock"

// released are the modules that have a release with each other, as folders.
var released = []string{"api/wire", "client", "fencing", "fencing/fencinggrpc", "migrations", "storage/mysqlguard", "storage/pgguard"}

// What an application pulls in with a module is what testdata says, and of the server
// nothing.
func TestApplicationsPullInLittle(t *testing.T) {
	testenv.Long(t, "a dependency that an application downloads with a module")
	t.Parallel()
	for name, main := range map[string]string{
		"client":              `_, _ = client.New([]string{"http://127.0.0.1:8080"})`,
		"fencing":             `_, _ = fencing.ParseToken("34")`,
		"fencing/fencinggrpc": `_ = fencinggrpc.UnaryClient()`,
		"api/wire":            `_ = wire.Lease{}`,
		"storage/mysqlguard":  `_ = mysqlguard.Do`,
		"storage/pgguard":     `_ = pgguard.Do`,
	} {
		app := t.TempDir()
		write(t, filepath.Join(app, "main.go"), fmt.Sprintf("package main\n\nimport %q\n\nfunc main() { %s }\n", product+"/"+name, main))
		write(t, filepath.Join(app, "go.mod"), "module example.com/app\n\ngo 1.26.0\n"+requirements(t, name))
		sums, err := os.ReadFile(filepath.Join("..", "..", "go.sum"))
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(app, "go.sum"), string(sums)) // no network is asked for them
		run(t, app, "build", "-mod=mod", "-o", os.DevNull, ".")
		got := modules(run(t, app, "list", "-mod=mod", "-m", "all"))
		path := filepath.Join("testdata", "graph_"+strings.ReplaceAll(name, "/", "_")+".txt")
		if *update {
			write(t, path, got)
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("an application with %s has the modules\n%s\nwant those of %s\n%s", name, got, path, want)
		}
	}
}

// requirements are of one module, and where the working tree has it and its siblings.
func requirements(t *testing.T, name string) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "\nrequire %s/%s v0.1.0\n\n", product, name)
	for _, of := range released {
		dir, err := filepath.Abs(filepath.Join("..", "..", of))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "replace %s/%s => %s\n", product, of, dir)
	}
	return b.String()
}

// modules are the names in the output of go list -m all, without the application's.
func modules(list string) string {
	var names []string
	for line := range strings.Lines(list) {
		names = append(names, strings.Fields(line)[0])
	}
	return strings.Join(names[1:], "\n") + "\n"
}

func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var failed strings.Builder
	cmd.Stderr = &failed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, failed.String())
	}
	return string(out)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// versionsStated finds the replaced version in go.work, and the version of pyproject.toml,
// package.json and pom.xml.
var versionsStated = regexp.MustCompile(`(?m)(?: v|^version = "|^  "version": "|^  <version>)([0-9][^ "<]*)(?: => |"$|",$|</version>$)`)

// The modules of one release require each other in one version, without a replace: with one,
// go install refuses the module. The working tree has the same version in go.work, and the clients
// of other languages have it, too.
func TestModulesAgree(t *testing.T) {
	t.Parallel()
	versions := map[string]string{}
	for _, dir := range append([]string{".", "bench", "chaos/peers", "client/gocronlock"}, released...) {
		var mod struct {
			Require []struct {
				Path    string `json:"Path"`
				Version string `json:"Version"`
			} `json:"Require"`
			Replace []struct{} `json:"Replace"`
		}
		path := filepath.Join("..", "..", dir)
		if err := json.Unmarshal([]byte(run(t, path, "mod", "edit", "-json")), &mod); err != nil {
			t.Fatal(err)
		}
		if len(mod.Replace) > 0 {
			t.Errorf("%s/go.mod has a replace: put it into go.work", dir)
		}
		for _, r := range mod.Require {
			if r.Path == product || strings.HasPrefix(r.Path, product+"/") {
				versions[strings.TrimPrefix(r.Version, "v")] = dir + "/go.mod"
			}
		}
	}
	for _, file := range []string{"go.work", "bench/go.work", "chaos/peers/go.work", "client/gocronlock/go.work", "clients/python/pyproject.toml", "clients/typescript/package.json", "clients/java/pom.xml", "clients/java/junit/pom.xml"} {
		text, err := os.ReadFile(filepath.Join("..", "..", file))
		if err != nil {
			t.Fatal(err)
		}
		stated := versionsStated.FindAllSubmatch(text, -1)
		if len(stated) == 0 {
			t.Errorf("%s states no version", file)
		}
		for _, v := range stated {
			versions[string(v[1])] = file
		}
	}
	if len(versions) != 1 {
		t.Errorf("one release has the versions %v", versions)
	}
}
