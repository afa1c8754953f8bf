package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

func TestAcquireExtendRelease(t *testing.T) {
	t.Parallel()
	p := start(t)
	var lease, extended wire.Lease
	got := p.tool("", nil, "acquire", "orders/42", "--ttl", "20s", "--holder", "me", "--metadata", `{"a":7}`)
	if err := json.Unmarshal([]byte(got.out), &lease); err != nil || got.code != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	if lease.Resource != "orders/42" || lease.TTLMS != 20_000 || lease.Holder != "me" || lease.ValidityMS <= 0 || !strings.Contains(got.out, `"a": 7`) {
		t.Errorf("%s", got.out)
	}
	p.tool("", nil, "acquire", "-n", "-E", "9", "orders/42").wants(t, "a second one", 9, "", "orders/42 is held by me")
	got = p.tool("", []string{"FENCELOCK_LEASE_ID=" + lease.LeaseID}, "extend", "--ttl", "40s")
	if err := json.Unmarshal([]byte(got.out), &extended); err != nil || extended.TTLMS != 40_000 || extended.FencingToken != lease.FencingToken {
		t.Errorf("%+v, %v", got, err)
	}
	p.tool("", nil, "extend", "--ttl", "1us", lease.LeaseID).wants(t, "extend", 2, "", "--ttl")
	p.tool("", nil, "release").wants(t, "release of nothing", 2, "", "FENCELOCK_LEASE_ID")
	p.tool("", nil, "release", lease.LeaseID).wants(t, "release", 0, "", "")
	got = p.tool("", nil, "release", lease.LeaseID)
	got.wants(t, "release again", cli.ExitLost, "", "has ended")
	if strings.Contains(got.errOut, lease.LeaseID) {
		t.Error("the lease id is in the complaint")
	}
	p.tool("", nil, "extend", lease.LeaseID).wants(t, "extend of the ended", cli.ExitLost, "", "has ended")
	p.tool("", nil, "release", "nonsense").wants(t, "release of nonsense", cli.ExitLost, "", "has ended")
}

// What acquire --export prints survives every shell, whatever the resource is called.
func TestExportIsSafeInShells(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := testenv.Program(t)
	nasty := `it's $(touch pwned) "x" \ ` + "`id`; é ~ * -n"
	for _, shell := range []string{"sh", "bash", "dash", "zsh", "ksh"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		script := `eval "$("$PROGRAM" acquire --export -- "$NASTY")" || exit 9
			test "$FENCELOCK_RESOURCE" = "$NASTY" && test "$FENCING_TOKEN" -gt 0 && "$PROGRAM" extend >/dev/null && "$PROGRAM" release && echo good
			"$PROGRAM" acquire --export "$NASTY" >/dev/null
			eval "$("$PROGRAM" acquire --export -n -E 5 "$NASTY" 2>/dev/null)"
			echo "status $?"`
		cmd := exec.Command(shell, "-c", script)
		cmd.Dir = t.TempDir()
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PROGRAM=" + path, "FENCELOCK_URL=" + p.url, "NASTY=" + nasty}
		finish(t, cmd, "").wants(t, shell, 0, "good\nstatus 5\n", "")
		if _, err := os.Stat(filepath.Join(cmd.Dir, "pwned")); err == nil {
			t.Errorf("%s ran what the resource is called", shell)
		}
		p.breaks(nasty)
	}
}

func TestListGetBreak(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.tool("", nil, "ls").wants(t, "ls of nothing", 0, "no locks are held\n", "")
	p.tool("", nil, "ls", "-o", "json").wants(t, "ls of nothing", 0, "[]\n", "")
	p.acquire(`{"resource":"orders/2","holder":"worker-2","ttl_ms":60000}`)
	first := p.acquire(`{"resource":"orders/1","holder":"worker-1","ttl_ms":60000,"metadata":{"job":7}}`)
	p.acquire(`{"resource":"other","ttl_ms":60000}`)
	next := p.waits(t.Context(), "orders/1", "worker-9", time.Minute)
	p.awaitWaiting("orders/1", 1)

	got := p.tool("", nil, "ls", "orders/")
	table := regexp.MustCompile(`(?s)^RESOURCE +HOLDER +TOKEN +ENDS IN +HELD FOR +WAITING\n` +
		`orders/1 +worker-1 +\d+ +(5\d|60|1m0)s? +\d+m?s +1\norders/2 +worker-2 +\d+ +\S+ +\d+m?s +0\n$`)
	if !table.MatchString(got.out) {
		t.Errorf("ls: %s", got.out)
	}
	var locks []wire.Lock
	if err := json.Unmarshal([]byte(p.tool("", nil, "ls", "-o", "json").out), &locks); err != nil || len(locks) != 3 || locks[2].Resource != "other" {
		t.Errorf("%+v, %v", locks, err)
	}
	got = p.tool("", nil, "get", "orders/1")
	if !regexp.MustCompile(`(?s)^resource +orders/1\nstate +held\nholder +worker-1\ntoken +\d+\nends in .*\nmetadata +{"job":7}\nwaiting +1\n +1\. +worker-9  for .*$`).MatchString(got.out) {
		t.Errorf("get: %s", got.out)
	}
	p.tool("", nil, "get", "orders/3").wants(t, "get of a free one", 0, "state     free", "")
	p.tool("", nil, "get", "orders/3", "-o", "json").wants(t, "get of a free one", 0, `"held": false`, "")
	p.tool("", nil, "get", "orders/3", "-o", "xml").wants(t, "get", 2, "", "must be table or json")
	p.tool("", nil, "get").wants(t, "get of nothing", 2, "", "use fencelock get RESOURCE")

	p.tool("yes\n", nil, "break", "--any", "orders/1").wants(t, "break by a script", 2, "", "--yes")
	p.tool("", nil, "break", "--yes", "orders/1").wants(t, "break of no lease", 2, "", "--token N")
	p.tool("", nil, "break", "--yes", "--any", "--token", "7", "orders/1").wants(t, "break of two", 2, "", "--token N")
	p.tool("", nil, "break", "--yes", "--token", "0", "orders/1").wants(t, "break of no token", 2, "", "fencing_token")
	token := strconv.FormatInt(first.FencingToken, 10)
	later := strconv.FormatInt(first.FencingToken+1, 10)
	p.tool("", nil, "break", "--yes", "--token", later, "orders/1").wants(t, "break of another lease", 1, "", "token "+token+" holds it now")
	p.tool("", nil, "break", "--token", later, "orders/1").wants(t, "break of another lease", 1, "", "token "+token+" of worker-1 does")
	p.tool("", nil, "break", "--yes", "--token", token, "orders/1").wants(t, "break", 0, "orders/1 is broken\n", "")
	if turn := <-next; turn.status != 201 || turn.lease.FencingToken <= first.FencingToken {
		t.Errorf("the next one got %d", turn.status)
	}
	p.tool("", nil, "break", "--yes", "--any", "orders/3").wants(t, "break of a free one", 1, "", "no lease holds the resource")
	p.tool("", nil, "ls", "--url", "http://127.0.0.1:1").wants(t, "ls of no server", 69, "", "it is unknown which locks are held: no server responds: http://127.0.0.1:1 refuses connections")
}

// ls --watch continues until it is interrupted, through an outage as well.
func TestListWatch(t *testing.T) {
	t.Parallel()
	p := start(t)
	cmd := command(t, []string{"FENCELOCK_URL=" + p.url}, "ls", "--watch", "--interval", "100ms")
	out := &testenv.Buffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	p.until("nothing is held", func() bool { return strings.Contains(out.String(), "no locks are held\n\nno locks") })
	lease := p.acquire(`{"resource":"orders/42","holder":"worker-1"}`)
	p.until("the lock shows", func() bool { return strings.Contains(out.String(), "orders/42  worker-1") })
	p.release(lease)
	p.Kill()
	p.until("the outage shows", func() bool {
		return strings.Contains(out.String(), "it is unknown which locks are held: no server responds")
	})
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	exits(t, cmd, 0, out, "")
	if strings.Contains(out.String(), "\x1b") {
		t.Error("control sequences, and no terminal")
	}
}

func TestCompletions(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.acquire(`{"resource":"orders/42"}`)
	p.acquire(`{"resource":"other"}`)
	for args, want := range map[string]string{
		"get or":                        "orders/42\n:4\n",
		"break ":                        "orders/42\nother\n:4\n",
		"run ord":                       "orders/42\n:4\n",
		"acquire a oth":                 "other\n:4\n",
		"ls -o ":                        "table\njson\n:4\n",
		"get r --out":                   "--output\ttable or json\n:4\n",
		"acquire --ttl ":                ":4\n",
		"get --url http://127.0.0.1:1 ": ":4\n",
		"rel":                           "release\tRelease a lease\n:4\n",
	} {
		cut := strings.Split(args, " ")
		got := p.tool("", nil, append([]string{"__complete"}, cut...)...)
		if !strings.HasPrefix(got.out, want) {
			t.Errorf("%q completes to %q, want %q", args, got.out, want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		p.tool("", nil, "completion", shell).wants(t, shell, 0, "fencelock", "")
	}
}

// The help of every command says what it is for, and has an example.
func TestHelpHasExamples(t *testing.T) {
	for _, cmd := range rootCommand().Commands() {
		if cmd.Hidden || cmd.Name() == "help" || cmd.Name() == "completion" {
			continue
		}
		commands := append(cmd.Commands(), cmd)
		for _, c := range commands {
			if c.Short == "" || c.Example == "" && !c.HasSubCommands() {
				t.Errorf("%s: short %q, example %q", c.CommandPath(), c.Short, c.Example)
			}
		}
	}
}

// No command sends a text that is not UTF-8, because it would name another resource at the server.
func TestCommandsRefuseWhatIsNotUTF8(t *testing.T) {
	t.Parallel()
	p := start(t)
	const bad = "bin/\xff"
	for _, args := range [][]string{
		{"acquire", bad}, {"acquire", "a", bad}, {"acquire", "--holder", bad, "a"}, {"acquire", "--metadata", `"` + bad + `"`, "a"},
		{"run", bad, "--", "true"}, {"run", "--holder", bad, "a", "--", "true"},
		{"get", bad}, {"ls", bad}, {"break", "--yes", "--any", bad},
	} {
		p.tool("", nil, args...).wants(t, strings.Join(args, " "), cli.ExitUsage, "", "must be valid UTF-8")
	}
	p.tool("", nil, "ls").wants(t, "what is held then", 0, "no locks are held", "")
}
