package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// A wrong configuration does not exit with the code of a held lock, whatever -E says. A script that skips its work
// when the lock is held must not skip it for ever because of a wrong address.
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
			if got.code != cli.ExitUsage || got.errOut == "" || got.out != "" {
				t.Errorf("%s: %s: %+v", name, args[0], got)
			}
		}
	}
}

// A held lock, a lost lease and a failure have different exit codes. Only the code of a held lock means that the
// caller may try again.
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

// The command under run gets the lease, but not the bearer token of its caller.
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

// A command that waits for a service that is down says so at once.
func TestRetriesAreReported(t *testing.T) {
	t.Parallel()
	p := start(t)
	dead := []string{"--url", "http://127.0.0.1:1", "--patience", "1s", "a"}
	p.tool("", nil, append([]string{"acquire"}, dead...)...).wants(t, "acquire", 69, "", "fencelock: no server responds: http://127.0.0.1:1 refuses connections, so no server listens there. Trying again for 1s (--patience)\n")
	if got := p.tool("", nil, append([]string{"acquire", "-q"}, dead...)...); got.code != 69 || got.errOut != "" {
		t.Errorf("-q: %+v", got)
	}
}

// Every command that destroys data asks first, in the same way.
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

// The help shows each command under a heading, and the flags for the server and the caller once.
func TestHelpIsGrouped(t *testing.T) {
	t.Parallel()
	p := start(t)
	help := p.tool("", nil, "--help")
	for _, text := range []string{"\nLocks:\n  acquire ", "\nWhat a server knows:\n  events ", "\nServers:\n  bootstrap ", "\nGuards:\n  demo "} {
		help.wants(t, "help", 0, text, "")
	}
	if n := strings.Count(help.out, "\n  get "); n != 1 {
		t.Errorf("get is listed %d times", n)
	}
	topic, of := p.tool("", nil, "help", "connection"), p.tool("", nil, "run", "--help")
	for _, name := range []string{"url", "bearer-token-file", "ca-file", "client-cert-file", "client-key-file"} {
		topic.wants(t, "help connection", 0, "--"+name+" string", "")
		if strings.Contains(of.out, "--"+name+" string") || !strings.Contains(of.out, "fencelock help connection") {
			t.Errorf("the help of run: %s", of.out)
		}
	}
}

// Commands print what a server knows, for people and for programs.
func TestReadingCommands(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, resource := range []string{"orders/1", "stock/1"} {
		p.acquire(fmt.Sprintf(`{"resource":%q,"ttl_ms":60000,"holder":"of %s"}`, resource, resource))
	}
	put := func(token int, status int) {
		p.wants(p.ask(nil, "PUT", "/guarded/accounts/1", "1", fmt.Sprint("Fencing-Token: ", token)), status)
	}
	put(7, http.StatusOK)
	put(6, http.StatusPreconditionFailed)
	for _, c := range []struct{ words, says string }{
		{"whoami", "(no access control)"},
		{"whoami -o json", `"right": "admin"`},
		{"history accounts/1", "refused"},
		{"history accounts/1 -o json", `"accepted": false`},
		{"ls --search stock", "stock/1"},
		{"ls --search nothing", "no locks are held"},
		{"ls --search STOCK -o json", `"resource": "stock/1"`},
		{"version -o json", `"version": `},
	} {
		got := p.tool("", nil, strings.Fields(c.words)...)
		got.wants(t, c.words, 0, c.says, "")
		if strings.Contains(got.out, "orders/1") {
			t.Errorf("%s: %s", c.words, got.out)
		}
	}
	p.tool("", nil, "history").wants(t, "history of nothing", 2, "", "use fencelock history RESOURCE")
}

// Commands report what they changed as JSON for programs, too.
func TestChangesAsJSON(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.acquire(`{"resource":"a","ttl_ms":60000}`)
	p.tool("", nil, "break", "--any", "--yes", "-o", "json", "a").wants(t, "break", 0, "{\n  \"broken\": true,\n  \"resource\": \"a\"\n}\n", "")
	for _, more := range [][]string{nil, {"--append", filepath.Join(t.TempDir(), "access.txt")}} {
		made := p.tool("", nil, append([]string{"token", "new", "--name", "w", "--read", "*", "-o", "json"}, more...)...)
		var token struct {
			Name        string `json:"name"`
			BearerToken string `json:"bearer_token"`
			Line        string `json:"line"`
		}
		if err := json.Unmarshal([]byte(made.out), &token); err != nil || token.Name != "w" || !strings.HasPrefix(token.BearerToken, "flk_") ||
			token.Line != fmt.Sprintf("w token=sha256:%x read=*", sha256.Sum256([]byte(token.BearerToken))) {
			t.Errorf("token new %v: %v: %+v", more, err, made)
		}
	}
}

// Events are followed until Ctrl-C, which is how people end them.
func TestEventsCommand(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"events", "a/", "--recent", "9"}, "granted  a/1  token "},
		{[]string{"events", "a/", "--recent", "9", "-o", "json"}, `{"event":"granted","at":"`},
	} {
		cmd := command(t, []string{"FENCELOCK_URL=" + p.url}, c.args...)
		out := &testenv.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		p.until("the event is printed", func() bool {
			lease := p.acquire(`{"resource":"a/1"}`)
			p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID)
			return strings.Contains(out.String(), c.says)
		})
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		exits(t, cmd, 0, out, c.says)
	}
	p.tool("", nil, "events", "--url", "http://127.0.0.1:1").wants(t, "no server", 69, "", "no server")
}

// A first start beside another server names the variables to set. With these set, the server works.
func TestTakenPortsAreNamed(t *testing.T) {
	t.Parallel()
	p := start(t)
	for variable, address := range map[string]string{"FENCELOCK_LISTEN": strings.TrimPrefix(p.url, "http://"), "FENCELOCK_ADMIN_LISTEN": p.admin} {
		env := []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0", "FENCELOCK_DATA=own.db", variable + "=" + address}
		finish(t, command(t, env, "serve"), "").wants(t, variable, cli.ExitFailed, "", "another program uses the port of "+variable+"="+address+": set "+variable+" to a free port")
	}
}
