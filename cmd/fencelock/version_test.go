package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// stampsOf returns the variables that a build file sets with -ldflags -X. The Go linker ignores a variable that does
// not exist.
func stampsOf(t *testing.T, path string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, flag := range regexp.MustCompile(`-X \$\(?(\w+)\)?\.(\w+)=`).FindAllStringSubmatch(string(text), -1) {
		pkg := regexp.MustCompile(`(?m)^` + flag[1] + ` *= *(\S+)$`).FindStringSubmatch(string(text))
		if pkg == nil {
			t.Fatalf("%s does not say what %s is", path, flag[1])
		}
		names = append(names, pkg[1]+"."+flag[2])
	}
	return names
}

// A release is built in a workspace, where Go stamps neither a version nor a commit. So release/build.sh stamps both
// by flags, and make build stamps the commit.
func TestVersionOfARelease(t *testing.T) {
	testenv.Long(t, "a release that does not say its version")
	t.Parallel()
	values := map[string]string{"releaseVersion": "v1.2.3", "releaseCommit": "0123456789abcdef", "releaseDate": "2026-03-01T12:00:00Z"}
	for path, want := range map[string]string{
		"../../release/build.sh": "fencelock v1.2.3 (commit 0123456789abcdef of 2026-03-01T12:00:00Z, go",
		"../../Makefile":         " (commit 0123456789abcdef of 2026-03-01T12:00:00Z, go",
	} {
		var stamp strings.Builder
		for _, name := range stampsOf(t, path) {
			_, _ = fmt.Fprintf(&stamp, "-X %s=%s ", name, values[strings.TrimPrefix(filepath.Ext(name), ".")])
		}
		binary := filepath.Join(t.TempDir(), "fencelock")
		if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", "-s -w "+stamp.String(), "-o", binary, ".").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v: %q, want %q", path, err, out, want)
		}
	}
}

// A program that go install builds in a clone has the commit and its date. In a Git worktree, where .git is a file,
// Go finds no commit.
func TestVersionOfAClone(t *testing.T) {
	testenv.Long(t, "a clone that does not know what it builds")
	t.Parallel()
	if info, err := os.Stat("../../.git"); err != nil || !info.IsDir() {
		t.Skip("NOT RUN: not in a clone")
	}
	binary := filepath.Join(t.TempDir(), "fencelock")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=auto", "-o", binary, ".") // the default, which a machine may have changed
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want, err := exec.CommandContext(t.Context(), "git", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "(commit "+strings.TrimSpace(string(want))+" of 2") {
		t.Errorf("%v: %s, want the commit %s", err, out, want)
	}
}
