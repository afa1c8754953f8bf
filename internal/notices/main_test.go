package main

import (
	"bytes"
	"debug/buildinfo"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Each module that go list finds in the program is named above a text that is a licence.
func TestEveryModuleHasItsLicence(t *testing.T) {
	testenv.Long(t, "a package that lacks the licence of something in it")
	info, err := buildinfo.ReadFile(testenv.Program(t))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := write(&out, thirdParty(info), folder); err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", "../../cmd/fencelock")
	listed, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	licences := map[string]bool{}
	isLicence := regexp.MustCompile(`(?i)permission is hereby granted|redistribution and use|apache license|mozilla public license`)
	for section := range strings.SplitSeq(out.String(), strings.Repeat("-", 80)+"\n\n") {
		users, text, _ := strings.Cut(section, "\n\n")
		for user := range strings.Lines(users) {
			licences[strings.TrimSpace(user)] = licences[strings.TrimSpace(user)] || isLicence.MatchString(text)
		}
	}
	modules := []string{"stdlib " + info.GoVersion}
	for module := range strings.FieldsFuncSeq(string(listed), func(r rune) bool { return r == '\n' }) {
		if strings.Contains(module, " v") { // one without a version is of this repository
			modules = append(modules, module)
		}
	}
	if len(modules) < 30 {
		t.Errorf("go list finds only %d modules", len(modules))
	}
	for _, module := range modules {
		if !licences[module] {
			t.Errorf("no licence of %s", module)
		}
	}
}

func TestAModuleWithoutALicence(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"license.go", "README.md"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package a\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules := []debug.Module{{Path: "example.com/b", Version: "v1.0.0"}, {Path: "example.com/a", Version: "v1.0.0"}}
	in := func(debug.Module) (string, error) { return dir, nil }
	if err := write(new(bytes.Buffer), modules, in); err == nil || !strings.Contains(err.Error(), "example.com/b: there is no licence") {
		t.Errorf("%v, want a refusal", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "vendored"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"LICENSE": "one\r\n", "vendored/COPYING.txt": "other"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	line := strings.Repeat("-", 80) + "\n\nexample.com/a v1.0.0\nexample.com/b v1.0.0\n\n"
	if err := write(&out, modules, in); err != nil || out.String() != line+"one\n\n"+line+"other\n\n" {
		t.Errorf("%v\n%s", err, out.String())
	}
}
