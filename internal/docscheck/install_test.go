package docscheck

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// installs is the environment of commands that install: a clone is one of this repository, as it is committed, and what
// they install is below dir. Packages come from the module proxy of Go, and from no other registry.
func installs(root, dir string) []string {
	return []string{
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url." + root + ".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/fencelock/fencelock.git",
		"GOBIN=" + filepath.Join(dir, "bin"), "npm_config_offline=true", "PIP_NO_INDEX=1", "PIP_NO_BUILD_ISOLATION=0", // which is yes
	}
}

// provideInstallers puts into PATH what the blocks install packages with.
func (r *reader) provideInstallers(t *testing.T, blocks []Block) {
	t.Helper()
	uses := func(command string) bool {
		return slices.ContainsFunc(blocks, func(b Block) bool { return b.Skipped == "" && strings.Contains(b.Text, command) })
	}
	if uses("npm install") {
		testenv.Installed(t, "npm", "npm")
	}
	if !uses("pip install") {
		return
	}
	python := testenv.PythonWith(t, map[string]string{"venv": "python3-venv", "ensurepip": "python3-venv", "hatchling": "python3-hatchling"})
	bin := filepath.Join(r.dir, "bin")
	if err := os.MkdirAll(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	// Its build backend is Debian's.
	script := "#!/bin/sh\n[ \"$2\" != venv ] || set -- \"$@\" --system-site-packages\nexec " + python + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
}

// The page's loop replaces every module of a release, so that an application can import any of them.
func TestInstallReplacesEveryModule(t *testing.T) {
	root := moduleRoot(t)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	loop := regexp.MustCompile(`(?m)^for module in "" (.*); do$`).FindStringSubmatch(read("docs/how-to/install.md"))
	if loop == nil {
		t.Fatal("the page has no loop over modules")
	}
	var used []string
	for _, use := range regexp.MustCompile(`(?m)^\t\.(/\S+)$`).FindAllStringSubmatch(read("go.work"), -1) {
		used = append(used, use[1])
	}
	if replaced := strings.Fields(loop[1]); !slices.Equal(replaced, used) || len(used) < 2 {
		t.Errorf("the page replaces %q, and go.work uses %q", replaced, used)
	}
}
