package testenv

import "testing"

// NeedsServer skips the test under `go test -short`, which `make check` is: the
// inner loop leaves out what starts a server. What starts one here calls it; a test
// that runs a server in another way calls it itself.
func NeedsServer(t testing.TB) {
	t.Helper()
	if testing.Testing() && testing.Short() {
		t.Skip("needs a server, and this is -short: make test runs it")
	}
}
