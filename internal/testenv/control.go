package testenv

import "testing"

// control is a server that its test may kill, freeze and bring back. Its methods fail
// the test on error.
type control struct {
	t      testing.TB
	name   string       // for messages
	srv    server       // nil if the server is not the test's own
	shared string       // if srv is nil: why the test cannot control the server, and what to do
	await  func() error // waits until a started server responds
}

// Kill ends the server as kill -9 does. Data that it had written to disk stay.
func (c *control) Kill() {
	c.t.Helper()
	c.do("Kill", server.kill)
}

// Shutdown shuts the server down gracefully: Redis with [PersistRDB] writes a snapshot, and PostgreSQL cuts
// open connections.
func (c *control) Shutdown() {
	c.t.Helper()
	c.do("Shutdown", server.stop)
}

// Freeze stops the execution of the server and of its workers. Its port still accepts
// connections, but the server does not respond. Its clock continues.
func (c *control) Freeze() {
	c.t.Helper()
	c.do("Freeze", server.freeze)
}

// Thaw continues a frozen server.
func (c *control) Thaw() {
	c.t.Helper()
	c.do("Thaw", server.thaw)
}

// Restart starts the server again on the same address and data, and returns when it responds. If the server
// still runs, Restart first shuts it down gracefully.
func (c *control) Restart() {
	c.t.Helper()
	c.do("Restart", func(s server) error {
		if running(s) {
			if err := s.stop(); err != nil {
				return err
			}
		}
		if err := s.start(); err != nil {
			return err
		}
		return c.await()
	})
}

// Logs returns what the server printed over all its incarnations; "" for a server that is not the test's own.
func (c *control) Logs() string {
	if c.srv == nil {
		return ""
	}
	return c.srv.logs()
}

// do applies do to the server, and fails the test if that fails; what is the method's name.
func (c *control) do(what string, do func(server) error) {
	c.t.Helper()
	c.mustBeOwn(what)
	if err := do(c.srv); err != nil {
		c.t.Fatalf("testenv: %s %s: %v", what, c.name, err)
	}
}

func (c *control) mustBeOwn(what string) {
	c.t.Helper()
	if c.srv == nil {
		c.t.Fatalf("testenv: %s %s: %s", what, c.name, c.shared)
	}
}

// running reports whether the server's current incarnation lives.
func running(s server) bool {
	select {
	case <-s.exited():
		return false
	default:
		return true
	}
}
