package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// held returns the resources that are held.
func (p *process) held() (resources []string) {
	p.t.Helper()
	var page wire.LockPage
	p.wants(p.ask(&page, "GET", "/locks", ""), 200)
	for _, lock := range page.Locks {
		resources = append(resources, lock.Resource)
	}
	return resources
}

// A run of several resources takes all or none. Its command gets a token and a proof for each, and no variable of
// another lease.
func TestRunSeveral(t *testing.T) {
	t.Parallel()
	keys := filepath.Join(t.TempDir(), "proof.keys")
	if err := os.WriteFile(keys, []byte("k1 "+strings.Repeat("5a", 32)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "FENCELOCK_PROOF_KEY_FILE="+keys)
	path := testenv.Program(t)
	stale := []string{"FENCING_TOKEN=1", "FENCING_PROOF=old", "FENCELOCK_RESOURCE=old", "FENCELOCK_LEASE_ID=old", "PROGRAM=" + path}
	const script = `echo "$FENCING_TOKENS"; echo "$FENCING_PROOFS"; "$PROGRAM" ls -o json; echo "rest $FENCING_TOKEN$FENCING_PROOF$FENCELOCK_RESOURCE"`
	got := p.tool("", stale, "run", "b b", "a", "--", "sh", "-c", script)
	got.wants(t, "run of two", 0, "\nrest \n", "")
	var tokens map[string]int64
	var proofs map[string]string
	var locks []wire.Lock
	d := json.NewDecoder(strings.NewReader(got.out))
	for _, into := range []any{&tokens, &proofs, &locks} {
		if err := d.Decode(into); err != nil {
			t.Fatalf("%v in %s", err, got.out)
		}
	}
	if len(locks) != 2 || len(tokens) != 2 || len(proofs) != 2 {
		t.Fatalf("%+v, tokens %v, proofs %v", locks, tokens, proofs)
	}
	for _, lock := range locks {
		if tokens[lock.Resource] != lock.FencingToken || proofs[lock.Resource] == "" {
			t.Errorf("%s has the token %d, and the command got %v, %v", lock.Resource, lock.FencingToken, tokens, proofs)
		}
	}
	if left := p.held(); left != nil {
		t.Errorf("still held: %q", left)
	}

	p.acquire(`{"resource":"taken","holder":"somebody","ttl_ms":60000}`)
	p.tool("", nil, "run", "-n", "a", "taken", "--", "false").wants(t, "one is taken", cli.ExitHeld, "", "fencelock: taken is held by somebody")
	if held := p.held(); !slices.Equal(held, []string{"taken"}) {
		t.Errorf("held: %q", held)
	}
	for args, complaint := range map[string]string{
		"run a b":            "with --: use",
		"run a b --":         "with --: use",
		"run a b a -- true":  "is named twice",
		"acquire":            "no resource is named",
		"acquire a b c b":    "is named twice",
		"run -n a b -- nope": "the command nope was not found",
	} {
		if got := p.tool("", nil, strings.Fields(args)...); got.code == 0 || !strings.Contains(got.errOut, complaint) {
			t.Errorf("%s: %+v, want %q", args, got, complaint)
		}
	}
}

// A run inside a run of several resources joins if it names the same resources in any order. It is refused if it
// names only some of them.
func TestRunSeveralInside(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := testenv.Program(t)
	inside := func(args string) said {
		return p.tool("", []string{"PROGRAM=" + path}, "run", "a", "b", "--", "sh", "-c", `echo "$FENCING_TOKENS"; "$PROGRAM" run `+args+` -- sh -c 'echo "$FENCING_TOKENS"'`)
	}
	got := inside("b a")
	if lines := strings.Fields(got.out); got.code != 0 || len(lines) != 2 || lines[0] != lines[1] {
		t.Errorf("the same resources: %+v", got)
	}
	inside("c").wants(t, "another resource", 0, "", "")
	for _, args := range []string{"a", "a b c", "c b"} {
		inside(args).wants(t, args, cli.ExitUsage, "", "would wait for itself")
	}
	p.tool("", []string{"PROGRAM=" + path}, "run", "a", "--", "sh", "-c", `"$PROGRAM" run a b -- true`).wants(t, "more resources", cli.ExitUsage, "", "would wait for itself")
}

// The variables that acquire --export prints replace all those of an earlier lease.
func TestAcquireSeveral(t *testing.T) {
	t.Parallel()
	p := start(t)
	path := testenv.Program(t)
	const script = `set -eu
		eval "$("$PROGRAM" acquire --export one)"; "$PROGRAM" release
		eval "$("$PROGRAM" acquire --export "it's" b)"; "$PROGRAM" extend; "$PROGRAM" release
		echo "${FENCING_TOKEN-no} ${FENCELOCK_RESOURCE-resource} $FENCING_TOKENS"
		eval "$("$PROGRAM" acquire --export one)"; "$PROGRAM" release
		echo "$FENCELOCK_RESOURCE ${FENCING_TOKENS-unset}"`
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = t.TempDir(), []string{"PATH=" + os.Getenv("PATH"), "FENCELOCK_URL=" + p.url, "PROGRAM=" + path}
	got := finish(t, cmd, "")
	got.wants(t, "acquire of several", 0, `"kind": "bundle"`, "")
	got.wants(t, "acquire of several", 0, `no resource {"b":`, "")
	got.wants(t, "acquire of one", 0, "one unset\n", "")
	if left := p.held(); left != nil {
		t.Errorf("still held: %q", left)
	}
}

// --slots makes a semaphore, and a run inside it joins the lease of its slot.
func TestRunSlots(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.tool("", nil, "run", "-n", "--slots", "1", "jobs", "--", "sh", "-c", `echo "$FENCELOCK_RESOURCE"`).wants(t, "a slot", 0, "jobs#slot1", "")
	p.acquire(`{"resource":"jobs","slots":2,"ttl_ms":60000}`)
	p.acquire(`{"resource":"jobs","slots":2,"ttl_ms":60000}`)
	p.tool("", nil, "run", "-n", "--slots", "2", "jobs", "--", "true").wants(t, "no slot is free", cli.ExitHeld, "", "jobs#slot")
	path := testenv.Program(t)
	inner := path + ` run -n --slots 3 jobs -- sh -c 'echo "$FENCELOCK_RESOURCE"'`
	p.tool("", nil, "run", "-n", "--slots", "3", "jobs", "--", "sh", "-c", inner).wants(t, "a run inside", 0, "jobs#slot3", "")
	p.tool("", nil, "run", "--slots", "0", "jobs", "--", "true").wants(t, "no slots", cli.ExitUsage, "", "--slots 0")
	p.tool("", nil, "run", "--slots", "33", "jobs", "--", "true").wants(t, "too many", cli.ExitUsage, "", "--slots 33 must be")
	p.tool("", nil, "acquire", "--slots", "2", "a", "b").wants(t, "several", cli.ExitUsage, "", "--slots 2 must not be")
}
