package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Python is an interpreter on this machine.
type Python struct {
	Path    string
	Version string // "3.11"
}

// Pythons returns the interpreters of Python 3.9 and newer on this machine, one of each version. If there is
// none, it installs one. If it cannot, the test is skipped with a message; it fails if CI is set.
func Pythons(t testing.TB) (found []Python) {
	t.Helper()
	if err := awaitInstall(); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	if found = findPythons(); len(found) > 0 {
		return found
	}
	err := aptInstall([]string{"python3"}, func() bool {
		found = findPythons()
		return len(found) > 0
	})
	if err != nil {
		notRun(t, fmt.Sprintf("there is no python3 (3.9 or newer) on this machine (Debian: apt-get install python3): %v", err))
	}
	return found
}

// findPythons finds the interpreters' own executables, because the python3 in PATH may be a script of a
// version manager, which starts ten times as slowly.
func findPythons() (found []Python) {
	candidates := []string{"python3", "/usr/bin/python3"}
	for minor := 9; minor <= 20; minor++ {
		candidates = append(candidates, fmt.Sprintf("python3.%d", minor))
	}
	home, _ := os.UserHomeDir()
	others, _ := filepath.Glob(filepath.Join(home, ".pyenv", "versions", "3.*", "bin", "python3"))
	seen := map[string]bool{}
	for _, path := range append(candidates, others...) {
		out, err := exec.Command(path, "-c", "import sys; print(sys.executable, '%d.%d' % sys.version_info[:2], sep='\\n'); sys.exit(sys.version_info < (3, 9))").Output()
		executable, version, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
		if err == nil && !seen[version] {
			seen[version] = true
			found = append(found, Python{executable, version})
		}
	}
	return found
}

// PythonWith returns the path of an interpreter that can import all the named modules, each given with its
// Debian package. It installs the packages if necessary. If it cannot, the test is skipped with a message; it
// fails if CI is set.
func PythonWith(t testing.TB, modules map[string]string) (path string) {
	t.Helper()
	var names, packages []string
	for name, pkg := range modules {
		names, packages = append(names, name), append(packages, pkg)
	}
	works := func() bool {
		for _, candidate := range []string{"python3", "/usr/bin/python3"} {
			out, err := exec.Command(candidate, "-c", "import sys, "+strings.Join(names, ", ")+"; print(sys.executable)").Output()
			if err == nil {
				path = strings.TrimSpace(string(out))
				return true
			}
		}
		return false
	}
	if err := awaitInstall(); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	if works() {
		return path
	}
	if err := aptInstall(packages, works); err != nil {
		notRun(t, fmt.Sprintf("no python3 here can import %s (Debian: apt-get install %s): %v", strings.Join(names, ", "), strings.Join(packages, " "), err))
	}
	return path
}

// Installed returns the path of a program. If the program is missing, Installed installs its Debian package.
// If it cannot, the test is skipped with a message; it fails if CI is set.
func Installed(t testing.TB, name, pkg string) (path string) {
	t.Helper()
	there := func() bool {
		found, err := exec.LookPath(name)
		path = found
		return err == nil
	}
	if err := awaitInstall(); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	if !there() {
		if err := aptInstall([]string{pkg}, there); err != nil {
			notRun(t, fmt.Sprintf("%s is not on this machine (Debian: apt-get install %s): %v", name, pkg, err))
		}
	}
	return path
}

// notRun skips the test, or fails it if CI is set.
func notRun(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal("testenv: " + why)
	}
	t.Skip("NOT RUN: " + why)
}
