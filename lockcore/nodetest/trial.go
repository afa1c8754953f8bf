package nodetest

import (
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Failures runs the texts of the rules whose names begin with prefix. It does not use testing.T.Run, which a
// bubble of testing/synctest does not allow. It returns the first failed scenario of each file, by the file's
// name. It calls open once for every scenario.
func Failures(tb testing.TB, prefix string, batches bool, open Open) map[string]string {
	tb.Helper()
	files, err := filepath.Glob(filepath.Join(rulesIn(tb), prefix+"*.txt"))
	if err != nil || len(files) == 0 {
		tb.Fatalf("no rule begins with %q: %v", prefix, err)
	}
	failures := make(map[string]string)
	for _, file := range files {
		all := &trial{TB: tb}
		all.Run("", func(tb testing.TB) { playFile(tb, file, open, way{batches: batches}) })
		if all.Failed() {
			failures[strings.TrimSuffix(filepath.Base(file), ".txt")] = all.failed
		}
	}
	return failures
}

// trial is a test that may fail. It keeps its messages.
type trial struct {
	testing.TB

	failed  string
	cleanup []func()
}

// Fatalf ends the trial.
func (t *trial) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// Errorf keeps a failure.
func (t *trial) Errorf(format string, args ...any) { t.failed += fmt.Sprintf(format, args...) + "\n" }

// Fatal ends the trial.
func (t *trial) Fatal(args ...any) { t.Fatalf("%s", fmt.Sprint(args...)) }

// Error keeps a failure.
func (t *trial) Error(args ...any) { t.Errorf("%s", fmt.Sprint(args...)) }

// FailNow ends the trial.
func (t *trial) FailNow() { runtime.Goexit() }

// Failed reports whether a failure was kept.
func (t *trial) Failed() bool { return t.failed != "" }

// Logf prints nothing.
func (*trial) Logf(string, ...any) {}

// Cleanup calls f when the trial has ended.
func (t *trial) Cleanup(f func()) { t.cleanup = append(t.cleanup, f) }

// Run runs a subtest for datadriven.
func (t *trial) Run(_ string, f func(testing.TB)) {
	sub := &trial{TB: t.TB}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(sub)
	}()
	<-done
	for _, clean := range slices.Backward(sub.cleanup) {
		clean()
	}
	t.failed += sub.failed
}
