package testenv

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Node returns the path of Node 18 or newer. It installs Node if that is missing. If it cannot, the test is
// skipped with a message; it fails if CI is set.
func Node(t testing.TB) (path string) {
	t.Helper()
	return Installed(t, "node", "nodejs")
}

// NodeModules returns a folder, for NODE_PATH, in which Node finds all the named modules, each given with its
// Debian package. If Node does not come from Debian, the packages cannot be installed next to it. They are
// then unpacked into a folder that the tests share. If neither is possible, the test is skipped with a
// message; it fails if CI is set.
func NodeModules(t testing.TB, modules map[string]string) (folder string) {
	t.Helper()
	node := Node(t)
	var program strings.Builder
	for name := range modules {
		fmt.Fprintf(&program, "require.resolve(%q);", name)
	}
	shared := filepath.Join(os.TempDir(), fmt.Sprintf("fencelock-testenv-node-%d", os.Getuid()))
	unpacked := filepath.Join(shared, "usr", "share", "nodejs")
	works := func() bool {
		for _, candidate := range []string{os.Getenv("NODE_PATH"), "/usr/share/nodejs", unpacked} {
			cmd := exec.Command(node, "-e", program.String())
			cmd.Env = append(os.Environ(), "NODE_PATH="+candidate)
			if candidate != "" && cmd.Run() == nil {
				folder = candidate
				return true
			}
		}
		return false
	}
	if err := awaitInstall(); err != nil {
		t.Fatalf("testenv: %v", err)
	}
	if works() {
		return folder
	}
	packages := slices.Sorted(maps.Values(modules))
	err := aptInstall(packages, works)
	if err != nil {
		err = errors.Join(err, unpackAll(shared, packages, works))
	}
	if err != nil && folder == "" {
		notRun(t, fmt.Sprintf("node cannot load %s here (Debian: apt-get install %s; elsewhere: npm install): %v",
			strings.Join(slices.Sorted(maps.Keys(modules)), ", "), strings.Join(packages, " "), err))
	}
	return folder
}

// unpackAll downloads Debian packages of Node modules, and the packages on which they depend, and unpacks all
// of them.
func unpackAll(dir string, packages []string, works func() bool) error {
	unlock, err := waitLock(aptLock())
	if err != nil {
		return err
	}
	defer unlock()
	if works() {
		return nil
	}
	args := []string{"depends", "--recurse", "--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"}
	out, err := exec.Command("apt-cache", append(args, packages...)...).Output()
	if err != nil {
		return fmt.Errorf("apt-cache depends: %w", err)
	}
	needed := slices.Clone(packages)
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); strings.HasPrefix(line, "node-") && !slices.Contains(needed, name) {
			needed = append(needed, name)
		}
	}
	downloads, err := os.MkdirTemp("", "fencelock-node-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(downloads) }()
	if err := download(downloads, needed...); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(downloads, "*.deb"))
	for _, file := range files {
		if out, failed := exec.Command("dpkg", "-x", file, dir).CombinedOutput(); failed != nil {
			err = errors.Join(err, fmt.Errorf("dpkg: %w\n%s", failed, out))
		}
	}
	if err == nil && !works() {
		return fmt.Errorf("%v were unpacked, but node does not find them", packages)
	}
	return err
}
