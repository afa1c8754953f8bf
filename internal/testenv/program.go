package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// ProgramEnv (not a variable of the product: it would say so) names a fencelock that is built already: make test builds one for all packages.
const ProgramEnv = "TESTENV_PROGRAM"

// builtProgram builds fencelock, without -race, once for all tests of a process.
var builtProgram = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(ProgramEnv); path != "" {
		return path, nil
	}
	dir, err := newServerDir("program")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "fencelock")
	build := exec.Command("go", "build", "-o", path, "github.com/fencelock/fencelock/cmd/fencelock")
	_, here, _, _ := runtime.Caller(0)
	build.Dir = filepath.Dir(here) // in the product's own module, whoever's test this is
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// Program returns the path of the fencelock program as its users run it: built without -race.
func Program(t testing.TB) string {
	t.Helper()
	path, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
