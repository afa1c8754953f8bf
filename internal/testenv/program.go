package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	if build.Dir, err = productDir(); err != nil {
		return "", err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// productDir is the folder of the product's own module, whoever's test this is.
func productDir() (string, error) {
	workspace, err := exec.Command("go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	return filepath.Dir(string(workspace)), nil
}

// Program returns the path of the fencelock program as its users run it: built without -race.
func Program(t testing.TB) string {
	t.Helper()
	path, err := builtProgram()
	if err != nil {
		t.Fatal(err)
	}
	return path
}
