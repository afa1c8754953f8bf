package suite

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/fencelock/fencelock/bench/internal/result"
)

// foreignShare adds up the processor time of other programs.
type foreignShare struct{ used, available time.Duration }

func (f *foreignShare) add(used, wall time.Duration) {
	f.used += used
	f.available += wall * time.Duration(runtime.NumCPU())
}

func (f *foreignShare) share() float64 {
	if f.available == 0 {
		return 0
	}
	return max(0, float64(f.used)/float64(f.available))
}

// describe describes this machine.
func describe(ctx context.Context, root string) result.Machine {
	return result.Machine{
		CPU:        field("/proc/cpuinfo", "model name"),
		Memory:     field("/proc/meminfo", "MemTotal"),
		Kernel:     kernel(read("/proc/sys/kernel/osrelease")),
		Load:       strings.TrimSpace(read("/proc/loadavg")),
		Processors: runtime.NumCPU(),
		Go:         runtime.Version(),
		Commit:     commit(ctx, root),
		Versions:   libraries(),
		Begun:      time.Now().UTC(),
	}
}

func read(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return "unknown"
	}
	return string(text)
}

// field finds "name : value" in a file of such lines.
func field(path, name string) string {
	for line := range strings.Lines(read(path)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// commit returns the tree's commit, marked if the tree has changes.
func commit(ctx context.Context, root string) string {
	cmd := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty", "--abbrev=10")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// libraries returns the versions of the contenders that are libraries.
func libraries() []result.Version {
	names := map[string]string{
		"github.com/go-redsync/redsync/v4": "redsync",
		"github.com/bsm/redislock":         "redislock",
		"github.com/redis/go-redis/v9":     "go-redis",
		"go.etcd.io/etcd/client/v3":        "etcd client",
		"github.com/jackc/pgx/v5":          "pgx",
	}
	var versions []result.Version
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, dep := range info.Deps {
		if name, ok := names[dep.Path]; ok {
			versions = append(versions, result.Version{Name: name, Version: dep.Version})
		}
	}
	return versions
}

// kernel returns the kernel's version number without the distributor's suffix.
func kernel(release string) string {
	number, _, _ := strings.Cut(strings.TrimSpace(release), "-")
	return number
}
