package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// TestChangeOfSetsThatIsKilled kills "sets apply" with SIGKILL at the beginning of each of its steps, and "sets
// revert" likewise, while leases are kept and passed on. "sets status" says how far the change is, and the same
// command completes it when it is run again. No two callers hold a lock at once, no token falls, and no lease that is
// kept alive is lost.
func TestChangeOfSetsThatIsKilled(t *testing.T) {
	testenv.Long(t, "a change of sets that cannot be completed after its command was killed")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 4)
	present, next := [][]*testenv.Redis{nodes[:3]}, [][]*testenv.Redis{nodes[:3], nodes[3:]}
	env := append(longLeases(changeOf(present, next)), "FENCELOCK_NODE_DOWN_AFTER=5s")
	f := startChanging(t, 2, longLeases(changeOf(present, nil)), env)
	patient := usual()
	patient.ttl, patient.refusals = 5*time.Minute, true // the commands may be slow
	e, end := startExclusive(t, f.direct(), patient)
	testenv.Eventually(t, patience, func() error {
		if n := e.count(); n < 2*patient.kept {
			return fmt.Errorf("%d grants", n)
		}
		return nil
	})
	k := &killing{t: t, env: env}
	apply := k.command("apply")
	k.whole(apply)
	applied := k.steps
	revert := k.command("revert")
	k.whole(revert)
	reverted := k.steps
	const fewest = 6 // close and open each of two sets, read, write
	if len(applied) < fewest || len(reverted) < len(applied) {
		t.Fatalf("the steps are %q, and back %q", applied, reverted)
	}
	for i := range max(len(applied), len(reverted)) {
		apply = k.command("apply")
		k.at(apply, min(i, len(applied)-1))
		k.whole(apply)
		revert := k.command("revert")
		k.at(revert, min(i, len(reverted)-1))
		k.whole(revert)
	}
	end()
	for _, err := range e.wrong {
		t.Error(err)
	}
	t.Logf("%d leases passed on; the steps are %q, and back %q", e.grants, applied, reverted)
}

// killing runs a command of "fencelock sets" and kills it.
type killing struct {
	t     *testing.T
	env   []string
	steps []string // of the last run
}

// command waits until the change may begin, or is complete, and returns the command that "sets status" prints.
func (k *killing) command(name string) []string {
	k.t.Helper()
	return printed(k.t, k.env, name)
}

func (k *killing) whole(args []string) {
	k.t.Helper()
	ran := runSets(k.t, k.env, args...)
	ran.wants(k.t, strings.Join(args, " "), 0, "are in force", "")
	k.steps = nil
	for line := range strings.Lines(ran.errOut) {
		if !strings.HasPrefix(line, "{") { // the audit log
			k.steps = append(k.steps, strings.TrimSpace(line))
		}
	}
}

// at kills the command when it has printed that a step begins, and checks what "sets status" prints.
func (k *killing) at(args []string, step int) {
	k.t.Helper()
	cmd := command(k.t, k.env, append([]string{"sets"}, args...)...)
	out, err := cmd.StderrPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	said := 0
	for said <= step && lines.Scan() {
		said++
	}
	_ = cmd.Process.Kill() // it may have ended by itself
	_, _ = io.Copy(io.Discard, out)
	_ = cmd.Wait()
	if said <= step {
		k.t.Fatalf("%v: %d lines before it ended, want %d", args, said, step+1)
	}
	status := runSets(k.t, k.env, "status")
	status.wants(k.t, fmt.Sprintf("status after %v was killed at step %d", args, step+1), 0, "\nnext: ", "")
	_, now, _ := strings.Cut(status.out, "\nnow: ")
	known := []string{"the change has not begun", "the change has begun", "the change is decided", "the change is complete", "the change is being taken back"}
	if !slices.ContainsFunc(known, func(text string) bool { return strings.HasPrefix(now, text) }) || strings.Contains(now, "next: wait") {
		k.t.Errorf("status after %v was killed at step %d: %s", args, step+1, status.out)
	}
}
