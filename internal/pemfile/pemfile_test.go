package pemfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

func text(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAFileThatIsCutOff is refused wherever it was cut, but between two certificates,
// where nothing shows that there were more.
func TestAFileThatIsCutOff(t *testing.T) {
	firstFile, keyFile := testenv.Certificate(t)
	secondFile, _ := testenv.Certificate(t)
	first, second := text(t, firstFile), text(t, secondFile)
	whole := "subject=/CN=a\n" + first + "\n# the next\n" + second
	path := filepath.Join(t.TempDir(), "ca.pem")
	begins := strings.Index(whole, "\n# the next\n") + len("\n# the next\n")
	for size := range len(whole) {
		if err := os.WriteFile(path, []byte(whole[:size]), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Authorities(path)
		_, pairErr := KeyPair(path, keyFile)
		inFirst, inSecond := size < len("subject=/CN=a\n")+len(first)-1, size > begins && size < len(whole)-1
		if bad := inFirst || inSecond; (err != nil) != bad || (pairErr != nil) != bad {
			t.Fatalf("cut off after %d of %d bytes, …%q: %v, %v", size, len(whole), whole[max(0, size-20):size], err, pairErr)
		}
		if inSecond && !strings.Contains(err.Error(), "cut off") {
			t.Errorf("after %d bytes: %v", size, err)
		}
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(whole, "\n", "\r\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	if pool, err := Authorities(path); err != nil || len(pool.Subjects()) != 2 { //nolint:staticcheck // it is not the system's pool
		t.Errorf("whole, with the line ends of Windows: %v", err)
	}
}

func TestWhatIsNoAuthority(t *testing.T) {
	certFile, keyFile := testenv.Certificate(t)
	cert, key := text(t, certFile), text(t, keyFile)
	lines := strings.SplitAfter(cert, "\n")
	for name, content := range map[string]string{
		"a key":               cert + key,
		"no certificate":      "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"a line that is lost": cert + strings.Join(append(lines[:2:2], lines[3:]...), ""),
		"a broken line":       cert + strings.Replace(cert, lines[2], "!"+lines[2][1:], 1),
		"without its end":     cert + strings.Join(lines[:len(lines)-2], "") + cert,
		"nothing":             "",
		"text":                "hello\n",
		"bytes":               string(make([]byte, 100)),
	} {
		path := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Authorities(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Authorities(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
	if _, err := KeyPair(certFile, keyFile); err != nil {
		t.Error(err)
	}
}
