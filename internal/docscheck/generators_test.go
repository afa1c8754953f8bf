package docscheck

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// The generator, at the version that the test is known to pass with.
const (
	goGenerator = "github.com/oapi-codegen/oapi-codegen/v2/cmd/oapi-codegen@v2.8.2"
	goRuntime   = "github.com/oapi-codegen/runtime@v1.9.0"
)

// TestGenerateGo makes a Go client of openapi.yaml by the generator's default options,
// and compiles a call with it. It needs the Go module proxy.
func TestGenerateGo(t *testing.T) {
	testenv.Long(t, "a contract of which oapi-codegen's defaults make no Go client")
	contract, err := filepath.Abs("../../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	run := func(args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
	}
	run("mod", "init", "example.com/shop")
	if err := os.Mkdir(filepath.Join(dir, "fencelock"), 0o755); err != nil {
		t.Fatal(err)
	}
	run("run", goGenerator, "-package", "fencelock", "-generate", "types,client", "-o", "fencelock/client.go", contract)
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(callOfGenerated), 0o600); err != nil {
		t.Fatal(err)
	}
	run("get", goRuntime)
	run("mod", "tidy")
	run("build", "./...")
}

// callOfGenerated fails to compile where the body of an acquire is an empty interface,
// or an operation has lost its name.
const callOfGenerated = `package main

import (
	"context"

	"example.com/shop/fencelock"
)

func main() {
	c, err := fencelock.NewClientWithResponses("http://127.0.0.1:8080")
	if err != nil {
		panic(err)
	}
	resource := "orders/42"
	granted, err := c.AcquireWithResponse(context.Background(), nil, fencelock.AcquireRequest{Resource: &resource})
	if err != nil || granted.JSON201 == nil {
		panic(err)
	}
	lease, err := granted.JSON201.AsLease()
	if err != nil {
		panic(err)
	}
	if _, err := c.ReleaseWithResponse(context.Background(), &fencelock.ReleaseParams{FencelockLease: lease.LeaseId}); err != nil {
		panic(err)
	}
}
`
