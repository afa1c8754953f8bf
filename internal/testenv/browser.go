package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// EnvBrowser names the environment variable with the program of the Chromium that tests use.
const EnvBrowser = "FENCELOCK_TEST_BROWSER"

// browserPackage is Debian's Chromium without a window, which is all that tests need.
const browserPackage = "chromium-headless-shell"

// Browser returns the path of a Chromium: the one that EnvBrowser names, an installed one, or, on Debian as
// root, one that it installs. Without a Chromium the test fails, and the message says what to do. The test is
// never skipped.
func Browser(t testing.TB) string {
	t.Helper()
	path, err := findBrowser()
	if err != nil {
		t.Fatalf("testenv: %v", err)
	}
	return path
}

func findBrowser() (string, error) {
	if path := os.Getenv(EnvBrowser); path != "" {
		return exec.LookPath(path)
	}
	path, err := findInstalled(localBrowser, browserPackage)
	if err != nil {
		return "", fmt.Errorf("%w, or name a Chromium in %s", err, EnvBrowser)
	}
	return path, nil
}

// localBrowser returns the path of an installed Chromium, or "".
func localBrowser() string {
	for _, name := range []string{
		// Debian's script starts the browser as a child. Killing the script would leave the browser running.
		"/usr/lib/chromium/chromium-headless-shell",
		"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless-shell",
		"/Applications/Google Chrome.app/Contents/MacOS/Google Chrome", "/Applications/Chromium.app/Contents/MacOS/Chromium",
	} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	return ""
}
