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

// Scope is what testenv takes for a test: it owns what was started in it. A
// failure is a panic, which [Guard] turns into an error.
type Scope struct {
	testing.TB // the methods that are not below must not be called

	name string
	log  io.Writer

	mu       sync.Mutex
	cleanups []func()
	failed   bool
}

// NewScope makes an empty scope; what is said in it goes to log.
func NewScope(name string, log io.Writer) *Scope { return &Scope{name: name, log: log} }

// failure is what Fatal panics with.
type failure struct{ message string }

// Guard calls do and returns the failure of a scope in it as an error.
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

// Close ends what the scope has started, the youngest first.
func (s *Scope) Close() {
	s.mu.Lock()
	cleanups := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, cleanup := range slices.Backward(cleanups) {
		cleanup()
	}
}

// Cleanup has f called by Close.
func (s *Scope) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// Helper does nothing here.
func (*Scope) Helper() {}

// Name is the scope's.
func (s *Scope) Name() string { return s.name }

// Failed says whether anything has failed.
func (s *Scope) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Logf writes to the log.
func (s *Scope) Logf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.log, s.name+": "+format+"\n", args...)
}

// Errorf writes to the log, too.
func (s *Scope) Errorf(format string, args ...any) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	s.Logf(format, args...)
}

// Fatalf gives up.
func (s *Scope) Fatalf(format string, args ...any) {
	s.mu.Lock()
	s.failed = true
	s.mu.Unlock()
	panic(failure{s.name + ": " + fmt.Sprintf(format, args...)})
}
