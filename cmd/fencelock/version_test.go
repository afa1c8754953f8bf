package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release is built in a workspace, where Go stamps neither a version nor a commit: the
// flags of release/build.sh do.
func TestVersionOfARelease(t *testing.T) {
	t.Parallel()
	binary := filepath.Join(t.TempDir(), "fencelock")
	stamp := "-X main.releaseVersion=v1.2.3 -X main.releaseCommit=0123456789abcdef -X main.releaseDate=2026-03-01T12:00:00Z"
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags", stamp, "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
	if want := "fencelock v1.2.3 (commit 0123456789abcdef of 2026-03-01T12:00:00Z, go"; err != nil || !strings.HasPrefix(string(out), want) {
		t.Errorf("%v: %q, want %q…", err, out, want)
	}
}
