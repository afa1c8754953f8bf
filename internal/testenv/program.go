package testenv

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// product is the path of the product's module.
const product = "github.com/fencelock/fencelock"

// Program returns the path of the fencelock program as its users run it: built without -race.
func Program(t testing.TB) string {
	t.Helper()
	return Build(t, product+"/cmd/fencelock")
}

// builds has, by package, the function that builds the program once for this process.
var builds = struct {
	mu sync.Mutex
	of map[string]func() (path string, err error)
}{of: map[string]func() (string, error){}}

// Build builds a program of the product's module without -race, and returns its path. pkg is the path of the
// program's package; a path that begins with "./" is relative to the test's folder. The program has the same
// path in each run and for all packages, so that go build finds it up to date and links it only once.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	if strings.HasPrefix(pkg, ".") {
		listed, err := exec.CommandContext(t.Context(), "go", "list", pkg).Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pkg, err)
		}
		pkg = strings.TrimSpace(string(listed))
	}
	builds.mu.Lock()
	once := builds.of[pkg]
	if once == nil {
		once = sync.OnceValues(func() (string, error) { return build(pkg) })
		builds.of[pkg] = once
	}
	builds.mu.Unlock()
	program, err := once()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

func build(pkg string) (program string, err error) {
	dir, err := buildAt(pkg, func(root, dir string) error {
		command := exec.Command("go", "build", "-o", filepath.Join(dir, path.Base(pkg)), pkg)
		command.Dir = root
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w: %s", pkg, err, out)
		}
		return nil
	})
	return filepath.Join(dir, path.Base(pkg)), err
}

// buildAt calls compile with the folder of the working tree, and with the folder for what is built from pkg. Of all
// processes one builds at a time.
func buildAt(pkg string, compile func(root, dir string) error) (dir string, err error) {
	root, err := productDir()
	if err != nil {
		return "", err
	}
	if err := dependOn(root); err != nil {
		return "", err
	}
	dir, err = folderOf(root, pkg)
	if err != nil {
		return "", err
	}
	lock, err := os.Create(filepath.Join(dir, "lock")) // other packages' tests build it too
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return dir, compile(root, dir)
}

// sources are the file name endings of sources, including those in other languages.
var sources = []string{".go", ".lua", ".sql", ".mod", ".html", ".css", ".js", ".mjs", ".ts", ".py", ".java", ".xml", ".toml", ".json", ".yaml"}

// dependOn makes go test run this test again after any source has changed. The compiler's input is not the
// test's own input, so go test would otherwise return a cached result of an earlier program.
func dependOn(root string) error {
	return filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "node_modules" || entry.Name() == "dist" || entry.Name() == "target"):
			return fs.SkipDir
		case !entry.IsDir() && slices.Contains(sources, filepath.Ext(name)):
			_, err = os.Stat(name) // go test records that the test depends on this file
		}
		return err
	})
}

// folderOf returns the folder of the program that is built from a package of one working tree.
func folderOf(root, pkg string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "fencelock-test", fmt.Sprintf("%.8x", sha256.Sum256([]byte(root))), strings.TrimPrefix(pkg, product+"/"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, nil
}

// productDir returns the folder of the product's own module, also for tests of other modules of the
// workspace.
func productDir() (string, error) {
	workspace, err := exec.Command("go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOWORK: %w", err)
	}
	return filepath.Dir(string(workspace)), nil
}
