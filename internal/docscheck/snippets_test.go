package docscheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// imports are the packages that Go snippets use, by name.
var imports = map[string]string{
	"client":        "github.com/fencelock/fencelock/client",
	"fencelocktest": "github.com/fencelock/fencelock/fencelocktest",
	"fencing":       "github.com/fencelock/fencelock/fencing",
	"fencinggrpc":   "github.com/fencelock/fencelock/fencing/fencinggrpc",
	"fencinghttp":   "github.com/fencelock/fencelock/fencing/fencinghttp",
	"mysqlguard":    "github.com/fencelock/fencelock/storage/mysqlguard",
	"pgguard":       "github.com/fencelock/fencelock/storage/pgguard",
	"redisguard":    "github.com/fencelock/fencelock/storage/redisguard",
	"pgx":           "github.com/jackc/pgx/v5",
	"pgxpool":       "github.com/jackc/pgx/v5/pgxpool",
	"redis":         "github.com/redis/go-redis/v9",
	"credentials":   "google.golang.org/grpc/credentials",
	"grpc":          "google.golang.org/grpc",
	"context":       "context", "errors": "errors", "fmt": "fmt", "http": "net/http", "json": "encoding/json",
	"log": "log", "net": "net", "os": "os", "slog": "log/slog", "sql": "database/sql", "testing": "testing", "time": "time",
}

// Every Go, Python and JavaScript block compiles.
func TestSnippets(t *testing.T) {
	goFiles := map[string]string{}
	for name, path := range pages(t, moduleRoot(t)) {
		for _, b := range read(t, path) {
			at := fmt.Sprintf("%s:%d", name, b.Line)
			switch {
			case b.Skipped != "" && !b.Runs():
				t.Logf("%s: not compiled: %s", at, b.Skipped)
			case b.Lang == "go":
				goFiles[at] = goFile(b)
			case b.Lang == "python", b.Lang == "js":
				if said := syntaxErrors(t, b); said != "" {
					t.Errorf("%s:\n%s", at, said)
				}
			}
		}
	}
	if said := compile(t, goFiles); said != "" {
		t.Errorf("go build:\n%s", said)
	}
}

func TestWrongSnippetsAreFound(t *testing.T) {
	for _, text := range []string{"undefined()", "x := 1", "func f() int { return \"\" }", "if {"} {
		if compile(t, map[string]string{"a.md:1": goFile(Block{Lang: "go", Text: text})}) == "" {
			t.Errorf("Go: %q is taken", text)
		}
	}
	for lang, text := range map[string]string{"python": "def f(:", "js": "const = 1"} {
		if syntaxErrors(t, Block{Lang: lang, Text: text}) == "" {
			t.Errorf("%s: %q is taken", lang, text)
		}
	}
	right := Block{Lang: "go", Given: "ctx context.Context, client *redis.Client", Text: "if client.Ping(ctx).Err() != nil {\n\treturn errors.New(`x`)\n}"}
	if said := compile(t, map[string]string{"a.md:1": goFile(right)}); said != "" {
		t.Errorf("a good snippet: %s", said)
	}
}

var bareReturn = regexp.MustCompile(`\breturn\s*(\}|\n|$)`)

// goFile makes a file of a block: itself if it has a package clause, else with
// the imports that it uses, and as the body of a function unless it is declarations.
func goFile(b Block) string {
	if strings.HasPrefix(b.Text, "package ") {
		return b.Text
	}
	var head strings.Builder
	head.WriteString("package snippet\n")
	for name, path := range imports {
		uses, isParameter := regexp.MustCompile(`\b`+name+`\.[A-Z]`), regexp.MustCompile(`(^|, )`+name+` `)
		if uses.MatchString(isParameter.ReplaceAllString(b.Given, "")) || !isParameter.MatchString(b.Given) && uses.MatchString(b.Text) {
			fmt.Fprintf(&head, "import %q\n", path)
		}
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "", head.String()+b.Text, 0); err == nil {
		return head.String() + b.Text
	}
	result, end := "error", "return nil"
	if bareReturn.MatchString(b.Text) {
		result, end = "", ""
	}
	return fmt.Sprintf("%sfunc _(%s) %s {\n%s\n%s\n}\n", head.String(), b.Given, result, b.Text, end)
}

// compile builds files, each as a package inside this module, which is not
// written to for that. It returns the compiler's complaints, "" for none.
func compile(t *testing.T, files map[string]string) string {
	t.Helper()
	root, dir := moduleRoot(t), t.TempDir()
	overlay, args := map[string]string{}, []string{"build", "-overlay", filepath.Join(dir, "overlay.json")}
	for at, text := range files {
		name := regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(at, "_")
		file := filepath.Join(dir, name+".go")
		writeFile(t, file, []byte(text))
		overlay[filepath.Join(root, "internal", "docscheck", "snippet", name, "snippet.go")] = file
		args = append(args, "./internal/docscheck/snippet/"+name)
	}
	listed, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "overlay.json"), listed)
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		t.Fatal(err)
	}
	return string(out)
}

// syntaxErrors is what Python or Node say of a block, "" for nothing.
func syntaxErrors(t *testing.T, b Block) string {
	t.Helper()
	var command []string
	file := "snippet.py"
	if b.Lang == "js" {
		command, file = []string{testenv.Node(t), "--check"}, "snippet.mjs"
	} else {
		command = []string{testenv.Pythons(t)[0].Path, "-m", "py_compile"}
	}
	file = filepath.Join(t.TempDir(), file)
	writeFile(t, file, []byte(b.Text))
	out, err := exec.CommandContext(t.Context(), command[0], append(command[1:], file)...).CombinedOutput()
	if err != nil {
		return string(bytes.TrimSpace(out)) + err.Error()
	}
	return ""
}

func writeFile(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}
