// Package stand starts everything that a benchmark needs on this machine: Redis
// and Postgres through internal/testenv, the fencelock server and etcd as child
// processes. All of it ends with the scope that started it.
package stand

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
)

// Scope takes the place of a test for internal/testenv: it owns what was started in it. A failure
// panics, and [Guard] turns the panic into an error.
type Scope struct {
	testing.TB // methods that Scope does not define must not be called

	name string
	log  io.Writer

	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

// NewScope makes an empty scope; its messages go to log.
func NewScope(name string, log io.Writer) *Scope { return &Scope{name: name, log: log} }

// failure is the value with which Fatal panics.
type failure struct{ message string }

// Guard calls do. If a scope fails in it, Guard returns the failure as an error.
func Guard(do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(failure)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("%s", f.message)
		}
	}()
	return do()
}

// Close stops everything that the scope has started, in reverse order.
func (s *Scope) Close() {
	s.mu.Lock()
	cleanups := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, cleanup := range slices.Backward(cleanups) {
		cleanup()
	}
}

// Cleanup makes Close call f.
func (s *Scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Helper does nothing here.
func (*Scope) Helper() {}

// Name returns the scope's name.
func (s *Scope) Name() string { return s.name }

// Failed reports whether anything has failed.
func (s *Scope) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Logf writes to the log.
func (s *Scope) Logf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.log, s.name+": "+format+"\n", args...)
}

// Errorf writes to the log, and marks the scope as failed.
func (s *Scope) Errorf(format string, args ...any) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.Logf(format, args...)
}

// Fatalf writes to the log, marks the scope as failed, and panics.
func (s *Scope) Fatalf(format string, args ...any) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	panic(failure{s.name + ": " + fmt.Sprintf(format, args...)})
}
