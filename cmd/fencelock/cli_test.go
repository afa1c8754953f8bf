package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// A wrong configuration is not a held lock: a script that skips a held lock must not skip
// its work for ever because of a wrong address. So no -E hides it.
func TestWrongConfigurationIsNotHeld(t *testing.T) {
	t.Parallel()
	p := start(t)
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	for name, env := range map[string]string{
		"no such bearer token file": "FENCELOCK_BEARER_TOKEN_FILE=/nosuch/token",
		"the admin port":            "FENCELOCK_URL=http://" + p.admin,
		"a path":                    "FENCELOCK_URL=" + p.url + "/api",
		"another HTTP server":       "FENCELOCK_URL=" + other.URL,
	} {
		for _, args := range [][]string{{"acquire", "-n", "-E", "0", "a"}, {"run", "-n", "-E", "0", "a", "--", "true"}, {"get", "a"}} {
			got := p.tool("", []string{env}, args...)
			if got.code != exitUsage || got.errOut == "" || got.out != "" {
				t.Errorf("%s: %s: %+v", name, args[0], got)
			}
		}
	}
}

// Held, lost and failed have codes of their own, and held is the one that asks to try again.
func TestExitCodesAreApart(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.tool("", nil, "run", "a", "--", "sh", "-c", "exit 0").wants(t, "done", 0, "", "")
	lease := p.acquire(`{"resource":"a","ttl_ms":60000,"holder":"me"}`)
	for _, args := range [][]string{{"acquire", "-n", "a"}, {"run", "-n", "a", "--", "true"}} {
		p.tool("", nil, args...).wants(t, args[0]+" of a held lock", 75, "", "a is held by me")
	}
	p.tool("", nil, "run", "-n", "-E", "0", "a", "--", "true").wants(t, "a skipped job", 0, "", "")
	p.tool("", nil, "break", "--any", "--yes", "a").wants(t, "break", 0, "a is broken", "")
	p.tool("", nil, "break", "--any", "--yes", "a").wants(t, "break of a free lock", 1, "", "")
	p.tool("", nil, "extend", lease.LeaseID).wants(t, "a lost lease", 79, "", "has ended")
}

func TestRunSaysWhatCannotRun(t *testing.T) {
	t.Parallel()
	p := start(t)
	dir := t.TempDir()
	script := filepath.Join(dir, "job")
	if err := os.WriteFile(script, []byte("echo hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.tool("", nil, "run", "a", "--", dir).wants(t, "a folder", 126, "", "is a folder, not a command")
	p.tool("", nil, "run", "a", "--", script).wants(t, "a script without an interpreter", 126, "", "has no #! line that names its interpreter; try sh "+script)
	p.tool("", nil, "run", "-n", "a", "--", "true").wants(t, "the lock after that", 0, "", "")
}

// The command gets the lease, and not this caller's credential.
func TestRunKeepsTheBearerToken(t *testing.T) {
	t.Parallel()
	p := start(t)
	env := []string{"FENCELOCK_BEARER_TOKEN=secret", "FENCELOCK_BEARER_TOKEN_FILE="}
	p.tool("", env, "run", "a", "--", "sh", "-c", `echo "token ${FENCELOCK_BEARER_TOKEN-is unset}, lease ${FENCELOCK_LEASE_ID:+is set}"`).
		wants(t, "run", 0, "token is unset, lease is set\n", "")
}

// A lease of acquire outlives its process, so its label names no process.
func TestAcquireIsLabelledWithTheHost(t *testing.T) {
	t.Parallel()
	p := start(t)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	p.tool("", nil, "acquire", "a").wants(t, "acquire", 0, fmt.Sprintf(`"holder": %q`, host), "")
	p.tool("", nil, "run", "b", "--", "sh", "-c", `"$0" get b`, testenv.Program(t)).wants(t, "run", 0, host+":", "")
}

// Whoever waits for a service that is down is told so at once.
func TestRetriesAreReported(t *testing.T) {
	t.Parallel()
	p := start(t)
	dead := []string{"--url", "http://127.0.0.1:1", "--patience", "1s", "a"}
	p.tool("", nil, append([]string{"acquire"}, dead...)...).wants(t, "acquire", 69, "", "fencelock: no server answers: http://127.0.0.1:1 refuses connections, so no server listens there. Trying again for 1s (--patience)\n")
	if got := p.tool("", nil, append([]string{"acquire", "-q"}, dead...)...); got.code != 69 || got.errOut != "" {
		t.Errorf("-q: %+v", got)
	}
}

// What destroys asks first, in one way.
func TestWhatDestroysAsks(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.acquire(`{"resource":"a","ttl_ms":60000}`)
	for _, words := range []string{"break --any a", "guard uninstall --database-url postgres://nobody@127.0.0.1:1/none"} {
		p.tool("yes\n", nil, strings.Fields(words)...).wants(t, words, 2, "", "this needs a confirmation, and stdin is not a terminal: add --yes")
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	p := start(t)
	if flag, command := p.tool("", nil, "--version"), p.tool("", nil, "version"); flag != command || flag.code != 0 || !strings.HasPrefix(flag.out, "fencelock ") {
		t.Errorf("--version: %+v\nversion: %+v", flag, command)
	}
}
