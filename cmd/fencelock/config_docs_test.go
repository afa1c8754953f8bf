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
	want := configurationMarkdown()
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

// Every variable of a server is in one group of the page, and no other.
func TestConfigurationGroupsAreWhole(t *testing.T) {
	var grouped []string
	for _, g := range configurationGroups {
		grouped = append(grouped, g.names...)
	}
	for _, v := range config.Variables() {
		if n := count(grouped, v.Name); n != 1 {
			t.Errorf("%s is in %d groups of configurationGroups", v.Name, n)
		}
	}
	if len(grouped) != len(config.Variables()) {
		t.Errorf("configurationGroups has %d names, the server %d variables", len(grouped), len(config.Variables()))
	}
}

func count(list []string, name string) (n int) {
	for _, s := range list {
		if s == name {
			n++
		}
	}
	return n
}

type configurationGroup struct {
	title string
	names []string
}

func group(title string, names ...string) configurationGroup {
	for i, name := range names {
		names[i] = "FENCELOCK_" + name
	}
	return configurationGroup{title, names}
}

var configurationGroups = []configurationGroup{
	group("Listeners", "LISTEN", "ADMIN_LISTEN", "TLS_CERT_FILE", "TLS_KEY_FILE", "TLS_CLIENT_CA_FILE", "ALLOWED_HOSTS", "CONSOLE"),
	group("Storage", "DATA", "REDIS_ADDRS", "REDIS_ADDRS_FILE", "REDIS_NEXT_ADDRS", "REDIS_NEXT_ADDRS_FILE", "STORE", "STORE_FILE", "DATABASE_URL", "DATABASE_URL_FILE", "BOOTSTRAP", "RECOVERY", "NODE_TIMEOUT", "NODE_DOWN_AFTER", "COUNTER_TTL"),
	group("Leases", "DEFAULT_TTL", "MAX_TTL", "MAX_HOLD", "MAX_WAITERS"),
	group("Guarded records", "MAX_RECORDS", "MAX_RECORD_BYTES"),
	group("Access", "ACCESS_FILE", "OIDC_ISSUER", "OIDC_AUDIENCE", "OIDC_CLAIM", "PROOF_KEY_FILE", "PROOF_REQUIRED", "LEASE_KEY_FILE", "INSECURE"),
	group("Logs, metrics and traces", "LOG_FORMAT", "LOG_LEVEL", "METRICS_PREFIXES", "TRACING"),
}

func configurationMarkdown() string {
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
	known := config.Variables()
	for _, g := range configurationGroups {
		fmt.Fprintf(&b, "\n## %s\n\n| variable | default | meaning |\n| --- | --- | --- |\n", g.title)
		for _, name := range g.names {
			i := slices.IndexFunc(known, func(v config.Variable) bool { return v.Name == name })
			if i < 0 {
				continue // TestConfigurationGroupsAreWhole fails
			}
			fallback := known[i].Default
			if fallback != "" {
				fallback = "`" + fallback + "`"
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, fallback, strings.ReplaceAll(known[i].Meaning, "|", `\|`))
		}
	}
	return b.String()
}
