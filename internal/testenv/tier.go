package testenv

import (
	"os"
	"testing"
)

// EnvTier names the environment variable that selects the tests. If it is empty, as in `go test work`, only
// the first tier runs, which has a test of each property. With "verify" the tests of [Long] run, too, and
// with "soak" also those of [Soak]. Go's cache of test results depends on the variable.
const EnvTier = "TESTENV_TIER" // not FENCELOCK_…, which the product would report as misspelt

const (
	verify = "verify"
	soak   = "soak"
)

// Long leaves a test to `make verify`, because the test takes longer than the others of its package, or needs
// something that few machines have. only says what no test of the first tier finds.
func Long(t testing.TB, only string) {
	t.Helper()
	if tier(t) == "" {
		t.Skipf("long: make verify runs it (%s=%s); only it finds %s", EnvTier, verify, only)
	}
}

// Soak leaves a test to `make soak`, because the test takes minutes, or measures and so needs a machine that
// does nothing else. only says what no test of make verify finds.
func Soak(t testing.TB, only string) {
	t.Helper()
	if tier(t) != soak {
		t.Skipf("soak: make soak runs it (%s=%s); only it finds %s", EnvTier, soak, only)
	}
}

// tier returns the tier from the environment. It fails the test if the tier is unknown, because otherwise
// tests would be skipped silently.
func tier(t testing.TB) string {
	t.Helper()
	name := os.Getenv(EnvTier)
	if name != "" && name != verify && name != soak {
		t.Fatalf("%s=%s: want %s or %s", EnvTier, name, verify, soak)
	}
	return name
}

// Computes skips a test under the race detector, where its computation would take minutes. Shorter tests run
// the same code. make verify also runs its package without -race.
func Computes(t testing.TB) {
	t.Helper()
	if raced {
		t.Skip("computes: make verify runs it without -race")
	}
}
