package chaos

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/fencelock/fencelock/internal/testenv"
)

//go:embed shim/clock.c
var clockSource []byte

// BuildShim compiles the library that shifts a node's clock. A C file beside Go files would need cgo, so it is
// in a separate folder that the go command ignores.
func BuildShim(dir string) (string, error) {
	if runtime.GOOS != "linux" {
		return "", errors.New("clocks can be shifted on Linux only")
	}
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return "", err
	}
	out, err := exec.Command("cc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cc: %w %s", err, out)
	}
	return library, nil
}

// Clock shifts one server's wall clock.
type Clock struct {
	path    string
	library string
	by      time.Duration
}

// NewClock makes a correct clock, and the option that makes a node follow it.
func NewClock(tb testing.TB, dir, library string, node int) (*Clock, testenv.RedisOption) {
	tb.Helper()
	c := &Clock{path: filepath.Join(dir, fmt.Sprintf("clock-%d", node)), library: library}
	if err := c.Jump(0); err != nil {
		tb.Fatal(err)
	}
	return c, testenv.WithEnv(c.Env()...)
}

// Env is the environment in which a program follows the clock. A program that runs as another user needs
// access to the clock's folder.
func (c *Clock) Env() []string { return []string{"LD_PRELOAD=" + c.library, "CHAOS_CLOCK=" + c.path} }

// Jump moves the clock by d. The file is written in place, since it is mapped.
func (c *Clock) Jump(d time.Duration) error {
	c.by += d
	var ns [8]byte
	binary.NativeEndian.PutUint64(ns[:], uint64(c.by.Nanoseconds()))
	f, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a server that runs as another user reads it
	if err != nil {
		return err
	}
	_, err = f.WriteAt(ns[:], 0)
	return errors.Join(err, f.Close())
}

// obeyed returns nil if the node's clock follows this one.
func (c *Clock) obeyed(tb testing.TB, client *redis.Client) error {
	tb.Helper()
	before := c.by
	err := c.Jump(time.Hour)
	now, errTime := client.Time(tb.Context()).Result()
	err = errors.Join(err, errTime, c.Jump(-time.Hour))
	if ahead := time.Until(now) - before; err == nil && (ahead < 50*time.Minute || ahead > 70*time.Minute) {
		err = fmt.Errorf("the node's clock is off by %s after a jump of an hour", ahead)
	}
	return err
}
