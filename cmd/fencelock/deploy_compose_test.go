package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// composeService has the fields of a service in docker-compose.yml that the tests read.
type composeService struct {
	Image       string            `yaml:"image"`
	Build       any               `yaml:"build"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	ReadOnly    bool              `yaml:"read_only"`
	CapDrop     []string          `yaml:"cap_drop"`
	SecurityOpt []string          `yaml:"security_opt"`
	MemLimit    string            `yaml:"mem_limit"`
	Ports       []string          `yaml:"ports"`
}

func composeServices(t *testing.T, path string) map[string]composeService {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", path))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]composeService `yaml:"services"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return file.Services
}

// TestComposeFile checks without Docker as much as possible of what make compose-check does for real.
func TestComposeFile(t *testing.T) {
	t.Parallel()
	pinned := regexp.MustCompile(`^[a-z./-]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}$`)
	standIns := composeServices(t, "deploy/compose/stand-ins.yaml")
	services := composeServices(t, "docker-compose.yml")
	onPostgres := composeServices(t, "deploy/compose-postgres.yml")
	if len(onPostgres) != 2 || onPostgres["postgres"].Image != services["postgres"].Image {
		t.Errorf("the services on Postgres alone are %+v", onPostgres)
	}
	for name, s := range onPostgres {
		services[name+", alone"] = s
	}
	onEtcd := composeServices(t, "deploy/compose-etcd.yml")
	if len(onEtcd) != 4 {
		t.Errorf("%d services on etcd", len(onEtcd))
	}
	for name, s := range onEtcd {
		services[name+", on etcd"] = s
	}
	maps.Copy(standIns, composeServices(t, "deploy/compose/stand-ins-etcd.yaml"))
	for name, s := range services {
		if s.Build == nil && !pinned.MatchString(s.Image) {
			t.Errorf("%s: the image %q has no version and digest", name, s.Image)
		}
		if !s.ReadOnly || len(s.CapDrop) != 1 || s.CapDrop[0] != "ALL" || len(s.SecurityOpt) != 1 || s.MemLimit == "" {
			t.Errorf("%s may do more than it needs: %+v", name, s)
		}
		if _, ok := standIns[strings.Split(name, ", ")[0]]; !ok && name != "grafana" {
			t.Errorf("%s has no stand-in", name)
		}
		for _, port := range s.Ports {
			if !strings.HasPrefix(port, "127.0.0.1:") {
				t.Errorf("%s is open to others: %s", name, port)
			}
		}
		for variable := range s.Environment {
			if strings.HasPrefix(variable, "FENCELOCK_") {
				knownVariable(t, name, variable)
			}
		}
		for _, volume := range s.Volumes {
			source, _, _ := strings.Cut(volume, ":")
			if _, err := os.Stat(filepath.Join("..", "..", source)); strings.HasPrefix(source, ".") && err != nil {
				t.Errorf("%s mounts %v", name, err)
			}
		}
	}
	if len(services) != 9+len(onPostgres)+len(onEtcd) {
		t.Errorf("%d services", len(services))
	}
	docker, err := os.ReadFile("../../Dockerfile")
	if err != nil || len(regexp.MustCompile(`(?m)^ARG (BUILD|BASE)_IMAGE=\S+@sha256:[0-9a-f]{64}$`).FindAll(docker, -1)) != 2 || strings.Contains(string(docker), "\nVOLUME") {
		t.Errorf("the Dockerfile's images have no digests, or it declares a volume: %v", err)
	}
}

// A stopping server ends within 30 s; a container is killed only after that.
func TestComposeOutlastsAStop(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../docker-compose.yml", "compose-etcd.yml", "compose-postgres.yml"} {
		_, rest, found := strings.Cut(string(deployFile(t, file)), "stop_grace_period: ")
		value, _, _ := strings.Cut(rest, " ")
		if grace, err := time.ParseDuration(value); !found || err != nil || grace <= 30*time.Second {
			t.Errorf("%s: a grace period of %q, %v", file, value, err)
		}
	}
}

// An rpm has the same bytes whichever host builds it.
func TestPackagesNameNoHost(t *testing.T) {
	t.Parallel()
	if text := string(deployFile(t, "../release/nfpm.yaml")); !strings.Contains(text, "\n  buildhost: localhost") {
		t.Error("the rpm has the name of the host that builds it")
	}
}
