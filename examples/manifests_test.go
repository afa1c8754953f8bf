package examples_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/fencelock/fencelock/internal/testenv"
)

// hosts are programs as they are in the PATH of several hosts: fencelock, and what it runs, which notes each run.
type hosts struct {
	bin, log string
	env      []string
}

func startHosts(t *testing.T, programs map[string]string) *hosts {
	t.Helper()
	h := &hosts{bin: t.TempDir(), log: filepath.Join(t.TempDir(), "runs")}
	if err := os.Symlink(testenv.Program(t), filepath.Join(h.bin, "fencelock")); err != nil {
		t.Fatal(err)
	}
	for name, script := range programs {
		if err := os.WriteFile(filepath.Join(h.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	h.env = append(os.Environ(), "RUNS="+h.log, "FENCELOCK_URL="+serve(t), "PATH="+h.bin+":"+os.Getenv("PATH"), "POD=pod-1")
	return h
}

func (h *hosts) command(t *testing.T, words []string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(h.bin, words[0]), words[1:]...)
	cmd.Env = h.env
	return cmd
}

// runs are the tokens that the programs ran under.
func (h *hosts) runs() []string {
	text, _ := os.ReadFile(h.log)
	return strings.Fields(string(text))
}

// runsOnce runs a command on three hosts at the same time, and on one whose clock is late: the program runs once.
func (h *hosts) runsOnce(t *testing.T, words []string) {
	t.Helper()
	var all sync.WaitGroup
	host := func() {
		if out, err := h.command(t, words).CombinedOutput(); err != nil {
			t.Errorf("%q: %v\n%s", words, err, out)
		}
	}
	for range 3 {
		all.Go(host)
	}
	all.Wait()
	host()
	if runs := h.runs(); len(runs) != 1 || runs[0] == "0" {
		t.Errorf("%q ran under the tokens %q, want one run", words, runs)
	}
}

const notes = `echo "${FENCING_TOKEN:-0}" >> "$RUNS"`

// A timer of systemd on several hosts runs its program on one.
func TestSystemdTimer(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	h := startHosts(t, map[string]string{"report": notes})
	units := t.TempDir()
	var words []string
	for _, name := range []string{"report.service", "report.timer"} {
		unit, err := os.ReadFile(filepath.Join("schedule-systemd", name))
		if err != nil {
			t.Fatal(err)
		}
		unit = bytes.ReplaceAll(unit, []byte("/usr/local/bin"), []byte(h.bin))
		if err := os.WriteFile(filepath.Join(units, name), unit, 0o600); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(unit)) {
			if exec, is := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="+h.bin+"/"); is {
				words = strings.Fields(exec)
			}
		}
	}
	analyze := testenv.Installed(t, "systemd-analyze", "systemd")
	out, err := exec.Command(analyze, "verify", filepath.Join(units, "report.timer"), filepath.Join(units, "report.service")).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte(units)) {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	h.runsOnce(t, words)
}

// workload is what the test reads of a manifest.
type workload struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	Spec       struct {
		JobTemplate struct {
			Spec struct{ Template pod }
		} `yaml:"jobTemplate"`
		Template pod
	}
}

type pod struct {
	Spec struct {
		Grace      int `yaml:"terminationGracePeriodSeconds"`
		Containers []struct{ Command []string }
	}
}

// manifest reads a manifest, which kubectl takes, too, where there is one.
func manifest(t *testing.T, name string) (w workload) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("schedule-kubernetes", name))
	if err == nil {
		err = yaml.Unmarshal(text, &w)
	}
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Log("NOT RUN: kubectl is not on this machine; the manifest was read by this test alone")
		return w
	}
	folder := t.TempDir()
	for file, content := range map[string][]byte{name: text, "kustomization.yaml": []byte("resources: [" + name + "]\n")} {
		if err := os.WriteFile(filepath.Join(folder, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(kubectl, "kustomize", folder).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return w
}

// A CronJob that is started several times runs its program once.
func TestCronJob(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	h := startHosts(t, map[string]string{"report": notes})
	w := manifest(t, "cronjob.yaml")
	if w.APIVersion != "batch/v1" || w.Kind != "CronJob" {
		t.Errorf("it is a %s of %s", w.Kind, w.APIVersion)
	}
	h.runsOnce(t, w.Spec.JobTemplate.Spec.Template.Spec.Containers[0].Command)
}

// Of the pods of a Deployment one leads, and when it is told to end another one does, under a larger token.
func TestLeaderPods(t *testing.T) {
	testenv.NeedsServer(t)
	t.Parallel()
	h := startHosts(t, map[string]string{"schedule": notes + "\nexec sleep 600"})
	words := manifest(t, "leader.yaml").Spec.Template.Spec.Containers[0].Command
	for i, word := range words {
		words[i] = strings.ReplaceAll(word, "$(POD)", "pod-1") // as Kubernetes does
	}
	leads := func(n int) {
		testenv.Eventually(t, 20*time.Second, func() error {
			if runs := h.runs(); len(runs) != n {
				return fmt.Errorf("%d have led, want %d", len(runs), n)
			}
			return nil
		})
	}
	pods := map[int]*exec.Cmd{}
	for i := range 2 {
		pods[i] = h.command(t, words)
		if err := pods[i].Start(); err != nil {
			t.Fatal(err)
		}
		leads(1) // the first leads before the second stands
	}
	if err := pods[0].Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = pods[0].Wait()
	leads(2)
	if runs := h.runs(); len(runs[0]) > len(runs[1]) || runs[0] >= runs[1] {
		t.Errorf("the tokens are %q", runs)
	}
	if err := pods[1].Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = pods[1].Wait()
}
