package examples_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/oapi-codegen/oapi-codegen/v2/pkg/codegen"
	_ "github.com/oapi-codegen/runtime" // what generated clients import
	"go.yaml.in/yaml/v3"
)

// openapi.yaml makes a Go client that compiles, and that takes and gives back
// a lease of the real service. It is made here as README.md says.
func TestGeneratedGoClient(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromFile("../openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var config codegen.Configuration
	if err := yaml.Unmarshal([]byte(read(t, "openapi-go.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	code, err := codegen.Generate(doc, config)
	if err != nil {
		t.Fatal(err)
	}
	out, err := overlaid(t, map[string]string{
		"generated/locks/locks.go": code,
		"generated/main.go":        read(t, "testdata/openapi-go.txt"),
	}, "./generated", "FENCELOCK_URL="+serve(t))
	if err != nil || strings.TrimSpace(out) != "true 409 true 204" {
		t.Errorf("the program that uses the generated client: %v\n%s", err, out)
	}
}

// overlaid runs a program of files that are not in the tree.
func overlaid(t *testing.T, files map[string]string, pkg, env string) (string, error) {
	t.Helper()
	dir, here := t.TempDir(), must(os.Getwd())
	replace := map[string]string{}
	for name, content := range files {
		path := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(here, name)] = path
	}
	overlay := filepath.Join(dir, "overlay.json")
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "run", "-overlay", overlay, pkg)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func must(dir string, err error) string {
	if err != nil {
		panic(err)
	}
	return dir
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
