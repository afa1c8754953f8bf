package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

var update = flag.Bool("update", false, "write docs/reference/configuration.md")

const configurationPage = "../../docs/reference/configuration.md"

// TestConfigurationPage fails when the page is not what the code says:
//
//	go test ./cmd/fencelock -run TestConfigurationPage -update
func TestConfigurationPage(t *testing.T) {
	want := configurationMarkdown(t)
	if *update {
		if err := os.WriteFile(configurationPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(configurationPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("docs/reference/configuration.md is not what the code says; write it with: go test ./cmd/fencelock -run TestConfigurationPage -update")
	}
}

// configurationGroups are the groups of the page, in the order of their first variables.
func configurationGroups(t *testing.T) (groups []string) {
	t.Helper()
	for _, v := range config.Variables() {
		if v.Group == "" {
			t.Errorf("%s has no group", v.Name)
		}
		if !slices.Contains(groups, v.Group) {
			groups = append(groups, v.Group)
		}
	}
	return groups
}

func configurationMarkdown(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	b.WriteString(`# Configuration

<!-- Generated from cmd/fencelock/internal/config by: go test ./cmd/fencelock -run TestConfigurationPage -update -->

The server is configured by environment variables.
` + "`fencelock serve --help`" + ` prints the same list.
Durations are in Go's form, such as ` + "`250ms`, `30s` or `24h`" + `.
An empty variable counts as not set.
A bad value stops the start with exit code 2, and the error names all bad values at once.
The server logs a warning about a ` + "`FENCELOCK_`" + ` variable that it does not know.

The variables of the other commands are in [cli.md](cli.md#connection).
`)
	for _, group := range configurationGroups(t) {
		fmt.Fprintf(&b, "\n## %s\n\n| variable | default | meaning |\n| --- | --- | --- |\n", group)
		for _, v := range config.Variables() {
			if v.Group != group {
				continue
			}
			fallback := v.Default
			if fallback != "" {
				fallback = "`" + fallback + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", v.Name, fallback, strings.ReplaceAll(v.Meaning, "|", `\|`))
		}
	}
	return b.String()
}
