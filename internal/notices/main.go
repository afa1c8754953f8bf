// Command notices prints the licence texts of the modules from which a Go binary was built, except its own modules. A
// release ships this text with the binary. The output for the same binary is always the same.
//
//	notices BINARY >THIRD_PARTY_NOTICES
package main

import (
	"cmp"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: notices BINARY")
		os.Exit(2)
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err == nil {
		err = write(os.Stdout, thirdParty(info), folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

// standard is the standard library, in the form of a module.
const standard = "stdlib"

// thirdParty returns the modules in a binary that come from elsewhere, and the standard library. Modules of
// this repository are replaced or have no version.
func thirdParty(info *debug.BuildInfo) []debug.Module {
	modules := []debug.Module{{Path: standard, Version: info.GoVersion}}
	for _, dep := range info.Deps {
		if dep.Replace == nil && dep.Version != "(devel)" {
			modules = append(modules, *dep)
		}
	}
	return modules
}

// folder returns the folder with the source of a module. It downloads the module if necessary.
func folder(m debug.Module) (string, error) {
	if m.Path == standard {
		out, err := exec.Command("go", "env", "GOROOT").Output()
		return strings.TrimSpace(string(out)), err
	}
	download := exec.Command("go", "mod", "download", "-json", m.Path+"@"+m.Version)
	download.Stderr = os.Stderr
	out, err := download.Output()
	if err != nil {
		return "", fmt.Errorf("go mod download %s: %w", m.Path, err)
	}
	var downloaded struct {
		Dir string `json:"Dir"`
	}
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return "", fmt.Errorf("go mod download %s: %w", m.Path, err)
	}
	return downloaded.Dir, nil
}

// legal matches the names of files with a licence or a notice.
var legal = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

// write writes each text once, below the names of the modules that use it. A module without a licence is an
// error.
func write(w io.Writer, modules []debug.Module, folder func(debug.Module) (string, error)) error {
	users := map[string][]string{} // by text, the modules that use it
	for _, m := range modules {
		dir, err := folder(m)
		if err != nil {
			return err
		}
		texts, err := textsOf(dir, m.Path == standard)
		if err != nil {
			return fmt.Errorf("%s: %w", m.Path, err)
		}
		for _, text := range texts {
			users[text] = append(users[text], m.Path+" "+m.Version)
		}
	}
	texts := make([]string, 0, len(users))
	for text, by := range users {
		slices.Sort(by)
		users[text] = slices.Compact(by)
		texts = append(texts, text)
	}
	slices.SortFunc(texts, func(a, b string) int {
		return cmp.Or(strings.Compare(users[a][0], users[b][0]), strings.Compare(a, b))
	})
	for _, text := range texts {
		if _, err := fmt.Fprintf(w, "%s\n\n%s\n\n%s\n\n", strings.Repeat("-", 80), strings.Join(users[text], "\n"), text); err != nil {
			return err
		}
	}
	return nil
}

// textsOf returns the licences and notices in a folder. If flat is false, it also searches the folders below.
func textsOf(dir string, flat bool) (texts []string, err error) {
	root := os.DirFS(dir)
	err = fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (flat || entry.Name() == "testdata"):
			return fs.SkipDir
		case entry.IsDir() || !legal.MatchString(entry.Name()) || filepath.Ext(entry.Name()) == ".go":
			return nil
		}
		text, err := fs.ReadFile(root, path)
		texts = append(texts, strings.TrimSpace(strings.ReplaceAll(string(text), "\r\n", "\n")))
		return err
	})
	if err == nil && len(texts) == 0 {
		err = fmt.Errorf("there is no licence in %s", dir)
	}
	return texts, err
}
