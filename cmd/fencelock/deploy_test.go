package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/fencelock/fencelock/internal/testenv"
)

// deployFile reads a file of the deploy folder.
func deployFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// decodeYAML reads one document, and refuses fields that it does not know.
func decodeYAML(t *testing.T, name string, text []byte, into any) {
	t.Helper()
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// alertRules is a file of Prometheus rules.
type alertRules struct {
	Groups []struct {
		Name  string `yaml:"name"`
		Rules []struct {
			Alert       string            `yaml:"alert"`
			Expr        string            `yaml:"expr"`
			For         string            `yaml:"for"`
			Labels      map[string]string `yaml:"labels"`
			Annotations map[string]string `yaml:"annotations"`
		} `yaml:"rules"`
	} `yaml:"groups"`
}

// metricNames finds the metrics of an expression. For a histogram an expression names its parts.
func metricNames(expression string) []string {
	return regexp.MustCompile(`\b(fencelock|process|go)_[a-z_]+\b`).FindAllString(expression, -1)
}

// wantMetrics fails for every metric that the service does not have.
func wantMetrics(t *testing.T, where, expression string, documented map[string]string) {
	t.Helper()
	names := metricNames(expression)
	if len(names) == 0 && !strings.Contains(expression, "up{") {
		t.Errorf("%s: no metric of the service in %s", where, expression)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "process_") || strings.HasPrefix(name, "go_") {
			continue // of the client library
		}
		whole := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")
		if documented[name] == "histogram" || documented[name] == "" && documented[whole] != "histogram" {
			t.Errorf("%s: there is no metric %s: %s", where, name, expression)
		}
	}
}

// headings returns the anchors of a page.
func headings(t *testing.T, page string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", page))
	if err != nil {
		t.Fatal(err)
	}
	anchors := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") {
			continue
		}
		title = strings.ReplaceAll(strings.ToLower(strings.TrimSpace(title)), " ", "-")
		anchors[regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(title, "")] = true
	}
	return anchors
}

func TestAlertsUseMetricsThatExist(t *testing.T) {
	var rules alertRules
	text := deployFile(t, "prometheus/fencelock.rules.yaml")
	decodeYAML(t, "rules", text, &rules)
	documented := documentedMetrics(t)
	anchors := headings(t, "docs/how-to/runbook.md")
	tested := string(deployFile(t, "prometheus/fencelock.rules.test.yaml"))
	seen := map[string]bool{}
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			wantMetrics(t, rule.Alert, rule.Expr, documented)
			page, anchor, _ := strings.Cut(rule.Annotations["runbook_url"], "#")
			if page != "docs/how-to/runbook.md" || !anchors[anchor] {
				t.Errorf("%s: the runbook has no entry %q", rule.Alert, rule.Annotations["runbook_url"])
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" || rule.Labels["severity"] == "" || seen[rule.Alert] {
				t.Errorf("%s is told twice, or lacks summary, description or severity", rule.Alert)
			}
			if strings.Count(tested, "alertname: "+rule.Alert+"\n") == 0 {
				t.Errorf("%s is in no rule test that has it fire", rule.Alert)
			}
			seen[rule.Alert] = true
		}
	}
	for anchor := range anchors {
		if name := strings.TrimPrefix(anchor, "fencelock"); name != anchor && !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), func(alert string) bool { return strings.EqualFold(alert, anchor) }) {
			t.Errorf("the runbook has %q, which is no alert", anchor)
		}
	}
	if len(seen) < 10 || !seen["FencelockWaitP99"] {
		t.Errorf("alerts %v", seen)
	}
}

// testAlerts runs a rule test over what is shipped: an item of promtool's list of tests.
func testAlerts(t *testing.T, item string) {
	t.Helper()
	promtool := testenv.Unpacked(t, "promtool", "prometheus")
	rules, err := filepath.Abs("../../deploy/prometheus/fencelock.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "alert.yaml")
	writeFile(t, path, fmt.Sprintf("rule_files: [%q]\nevaluation_interval: 15s\ntests:\n%s", rules, item))
	if out, err := exec.Command(promtool, "test", "rules", path).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// The rules' own tests need Prometheus's tool; the tests above check what does not need it.
func TestAlertsFireWhenTheyShould(t *testing.T) {
	testenv.Long(t, "an alert whose expression does not hold in what a server under its fault tells")
	t.Parallel()
	promtool := testenv.Unpacked(t, "promtool", "prometheus")
	for _, args := range [][]string{{"check", "config", "--syntax-only", "prometheus.yaml"}, {"check", "config", "compose.yaml"}, {"check", "rules", "fencelock.rules.yaml"}, {"test", "rules", "fencelock.rules.test.yaml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = "../../deploy/prometheus"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, out)
		}
	}
}

func TestDashboardUsesMetricsThatExist(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title   string `json:"title"`
			Type    string `json:"type"`
			GridPos struct {
				X int `json:"x"`
				W int `json:"w"`
			} `json:"gridPos"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
		Templating struct {
			List []struct {
				Name       string `json:"name"`
				Definition string `json:"definition"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(deployFile(t, "grafana/fencelock.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	documented := documentedMetrics(t)
	shown := map[string]bool{}
	for _, panel := range dashboard.Panels {
		if panel.Type != "row" && len(panel.Targets) == 0 || panel.GridPos.X+panel.GridPos.W > 24 {
			t.Errorf("%s shows nothing, or stands out", panel.Title)
		}
		for _, target := range panel.Targets {
			wantMetrics(t, panel.Title, target.Expr, documented)
			for _, name := range metricNames(target.Expr) {
				shown[regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, "")] = true
			}
		}
	}
	for _, variable := range dashboard.Templating.List {
		if variable.Definition != "" {
			wantMetrics(t, "$"+variable.Name, variable.Definition, documented)
		}
	}
	for _, name := range []string{"fencelock_wait_seconds", "fencelock_node_state", "fencelock_leases_lost_total", "fencelock_stale_writes_refused_total"} {
		if !shown[name] {
			t.Errorf("%s is shown nowhere", name)
		}
	}
}

// Every YAML file in the folder can be read, to its last document.
func TestDeployFilesAreReadable(t *testing.T) {
	count := 0
	err := filepath.WalkDir("../../deploy", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == "templates" {
			return filepath.SkipDir // of the Helm chart, which make chart-check renders
		}
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		count++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
			var document any
			if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				t.Errorf("%s: %v", path, err)
				return nil
			}
		}
	})
	if err != nil || count < 2 {
		t.Errorf("%d files, %v", count, err)
	}
}
