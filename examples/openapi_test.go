package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// generatedRuntime is what generated clients import, at the version that the test is known to pass with.
const generatedRuntime = "github.com/oapi-codegen/runtime@v1.9.0"

// README.md's command makes a Go client of openapi.yaml that compiles in a module of an application, and that takes
// and gives back a lease of the real service. It needs the Go module proxy.
func TestGeneratedGoClient(t *testing.T) {
	testenv.Long(t, "an openapi.yaml of which no Go client is made that works")
	t.Parallel()
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	generator := regexp.MustCompile(`go run (github\.com/oapi-codegen/\S+) -config`).FindSubmatch(page)
	if generator == nil {
		t.Fatal("README.md does not say how a Go client is made")
	}
	program, err := os.ReadFile("testdata/openapi-go.txt")
	if err != nil {
		t.Fatal(err)
	}
	config, contract := absolute(t, "openapi-go.yaml"), absolute(t, "../openapi.yaml")
	url, dir := serve(t), t.TempDir()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "FENCELOCK_URL="+url)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("mod", "init", "example.com/shop")
	if err := os.Mkdir(filepath.Join(dir, "locks"), 0o755); err != nil {
		t.Fatal(err)
	}
	run("run", string(generator[1]), "-config", config, "-o", "locks/locks.go", contract)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), program, 0o600); err != nil {
		t.Fatal(err)
	}
	run("get", generatedRuntime)
	run("mod", "tidy")
	run("build", "-o", "shop", ".")
	said, err := exec.CommandContext(t.Context(), "env", "FENCELOCK_URL="+url, filepath.Join(dir, "shop")).CombinedOutput()
	if err != nil || strings.TrimSpace(string(said)) != "true 409 true 204" {
		t.Errorf("the program that uses the generated client: %v\n%s", err, said)
	}
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
