package testenv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Prometheus is a Prometheus that belongs to one test.
type Prometheus struct{ webProxy }

// StartPrometheus starts a Prometheus with the configuration, and with the rules in the file rules.yaml,
// which the configuration may name. The program comes from Debian's package (see Unpacked).
func StartPrometheus(t testing.TB, config, rules string) *Prometheus {
	t.Helper()
	NeedsServer(t)
	path := Unpacked(t, "prometheus", "prometheus")
	return &Prometheus{startWebProxy(t, webProgram{
		name: "prometheus", file: "prometheus.yaml", taken: "address already in use",
		find: func() (string, error) { return path, nil },
		args: func(dir string) []string {
			return []string{"--config.file=prometheus.yaml", "--web.listen-address=" + proxyListen, "--storage.tsdb.path=" + filepath.Join(dir, "data"), "--log.level=warn"}
		},
		config: func(dir string) string {
			if err := os.WriteFile(filepath.Join(dir, "rules.yaml"), []byte(rules), 0o600); err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(config) + "\n"
		},
	})}
}
