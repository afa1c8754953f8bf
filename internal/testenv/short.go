package testenv

import "testing"

// NeedsServer skips the test under `go test -short`, which `make check` uses to exclude tests that start a
// server. The functions of this package that start one call it. A test that starts a server in another way
// must call it itself.
func NeedsServer(t testing.TB) {
	t.Helper()
	if testing.Testing() && testing.Short() {
		t.Skip("needs a server, and this is -short: go test work runs it")
	}
}
