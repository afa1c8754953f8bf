package main

import (
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

const authoritiesOf = "FENCELOCK_TEST_AUTHORITIES"

// In an image from scratch the program trusts Mozilla's authorities. If SSL_CERT_FILE names a file, it trusts only
// the authorities in that file. A process reads both only once, so the test starts other processes.
func TestAuthoritiesWithoutThoseOfASystem(t *testing.T) {
	t.Parallel()
	if file := os.Getenv(authoritiesOf); file != "" {
		trusted, err := x509.SystemCertPool()
		if err != nil {
			t.Fatal(err)
		}
		want := x509.NewCertPool()
		pem, err := os.ReadFile(file)
		given := err == nil && want.AppendCertsFromPEM(pem)
		if trusted.Equal(want) != given || trusted.Equal(x509.NewCertPool()) {
			t.Errorf("authorities of %s (%v): %t", file, err, given)
		}
		return
	}
	certificate, _ := testenv.Certificate(t)
	for _, file := range []string{certificate, filepath.Join(t.TempDir(), "none")} {
		child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAuthoritiesWithoutThoseOfASystem$", "-test.count=1")
		child.Env = append(os.Environ(), authoritiesOf+"="+file, "SSL_CERT_FILE="+file, "SSL_CERT_DIR="+t.TempDir())
		if out, err := child.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
	}
}
