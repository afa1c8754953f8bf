package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Unpacked returns the path of a program that tests use and users do not need: the one in PATH, or else the
// file of that name in usr/bin of a Debian package. The package is downloaded and unpacked into a folder of
// the test, not installed. If that fails, the test is skipped with the reason; it fails if CI is set.
func Unpacked(t testing.TB, name, pkg string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "root", "usr", "bin", name)
	if err := unpack(dir, pkg, path); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("testenv: %s: %v", name, err)
		}
		t.Skipf("NOT RUN: %s is not on this machine (Debian: apt-get install %s): %v", name, pkg, err)
	}
	return path
}

func unpack(dir, pkg, path string) error {
	if err := download(dir, pkg); err != nil {
		if err := errors.Join(runApt("apt-get", []string{"update"}), download(dir, pkg)); err != nil {
			return err
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil || len(files) != 1 {
		return fmt.Errorf("apt-get downloaded %d files of %s: %w", len(files), pkg, err)
	}
	if out, err := exec.Command("dpkg", "-x", files[0], filepath.Join(dir, "root")).CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg: %w\n%s", err, out)
	}
	_, err = os.Stat(path)
	return err
}

func download(dir string, pkgs ...string) error {
	cmd := exec.Command("apt-get", append([]string{"download"}, pkgs...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get download %v: %w\n%s", pkgs, err, out)
	}
	return nil
}
