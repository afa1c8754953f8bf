package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// operatorsPage is a page for operators whose commands run as they are written, except that the names of its servers
// are replaced by those of the test.
type operatorsPage struct {
	t     *testing.T
	name  string
	text  string
	names *strings.Replacer
}

// operatorPage reads a page below docs. names are pairs: a name in the page, and its replacement in this test.
func operatorPage(t *testing.T, name string, names ...string) *operatorsPage {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return &operatorsPage{t: t, name: name, text: string(text), names: strings.NewReplacer(names...)}
}

// run runs the only block of commands in the page that contains the text, in a folder and with an operator's
// variables, and returns its output.
func (p *operatorsPage) run(has, dir string, env ...string) string {
	p.t.Helper()
	commands := p.commands(has)
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", commands)
	cmd.Dir, cmd.Env = dir, append(operatorsShell(p.t), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s: %v\n%s%s", p.name, err, commands, out)
	}
	return string(out)
}

// commands returns the only block of commands in the page that contains the text, with the test's names.
func (p *operatorsPage) commands(has string) string {
	p.t.Helper()
	var found []string
	for i, block := range strings.Split(p.text, "```") {
		if commands, ok := strings.CutPrefix(block, "sh\n"); i%2 == 1 && ok && strings.Contains(commands, has) {
			found = append(found, commands)
		}
	}
	if len(found) != 1 {
		p.t.Fatalf("%s has %d blocks of commands with %q", p.name, len(found), has)
	}
	return p.names.Replace(found[0])
}

// operatorsShell returns the environment of a shell that has the program in its PATH.
func operatorsShell(t *testing.T) []string {
	t.Helper()
	return append(os.Environ(), "PATH="+filepath.Dir(testenv.Program(t))+":"+os.Getenv("PATH"))
}

// cost is what an operation cost the users of the locks.
type cost struct {
	exclusive

	lost    int           // leases whose work was ended
	probes  int           // grants of the free lock
	took    time.Duration // the operation
	refused time.Duration // the longest time without a grant of a free lock
}

const (
	operationTTL    = 5 * time.Second // of the load's leases
	operationMaxTTL = 6 * time.Second // FENCELOCK_MAX_TTL
	keptLeases      = 4
)

// operationSettings are the settings of servers under the load.
func operationSettings() []string {
	return []string{"FENCELOCK_MAX_TTL=" + operationMaxTTL.String(), "FENCELOCK_DEFAULT_TTL=" + operationTTL.String()}
}

// underLoad runs an operation on servers while a few callers use them: some keep their leases while a rival waits for
// each, some pass locks on, and one asks for a free lock again and again.
func underLoad(t *testing.T, urls string, operate func(), opts ...client.Option) *cost {
	t.Helper()
	c, err := client.New(strings.Split(urls, ","), opts...)
	if err != nil {
		t.Fatal(err)
	}
	k := &cost{exclusive: exclusive{works: map[string]bool{}, tokens: map[string]fencing.Token{}}}
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	const passing, resources, hold = 4, 2, 20 * time.Millisecond
	for i := range 2 * keptLeases {
		ended.Go(func() { k.use(ctx, c, fmt.Sprint("kept/", i%keptLeases), time.Hour) })
	}
	for i := range passing {
		ended.Go(func() { k.use(ctx, c, fmt.Sprint("passed/", i%resources), hold) })
	}
	ended.Go(func() { k.probe(ctx, c) })
	const enough = 2 * (keptLeases + passing)
	k.awaitMore(t, &k.probes, 2)
	k.awaitMore(t, &k.grants, enough)
	began := time.Now()
	operate()
	k.took = time.Since(began)
	// It is over only when a free lock is granted again, and locks are passed on.
	k.awaitMore(t, &k.probes, 2)
	k.awaitMore(t, &k.grants, enough)
	stop()
	ended.Wait()
	for _, wrong := range k.wrong {
		t.Error(wrong)
	}
	return k
}

// use takes a lock again and again, and holds it for some time each.
func (k *cost) use(ctx context.Context, c *client.Client, resource string, hold time.Duration) {
	for ctx.Err() == nil {
		_ = c.Do(context.WithoutCancel(ctx), resource, func(work context.Context, lease *client.Lease) error {
			defer k.enter(resource, lease.Token())()
			select {
			case <-time.After(hold):
			case <-ctx.Done():
			case <-work.Done():
				k.mu.Lock()
				k.lost++
				k.mu.Unlock()
			}
			return context.Cause(work)
		}, client.TTL(operationTTL), client.Wait(time.Second)) // again after an error: probe measures refusals
	}
}

// probe asks for a lock that no other caller wants.
func (k *cost) probe(ctx context.Context, c *client.Client) {
	const pause = 20 * time.Millisecond
	for last := time.Now(); ctx.Err() == nil; <-time.After(pause) {
		lease, err := c.TryAcquire(ctx, "probe", client.TTL(operationTTL))
		if err != nil {
			continue
		}
		_ = lease.Release(ctx)
		k.mu.Lock()
		k.probes++
		k.refused = max(k.refused, time.Since(last))
		k.mu.Unlock()
		last = time.Now()
	}
}

// awaitMore waits until a count has grown by n.
func (k *cost) awaitMore(t *testing.T, counted *int, n int) {
	t.Helper()
	count := func() int {
		k.mu.Lock()
		defer k.mu.Unlock()
		return *counted
	}
	before := count()
	testenv.Eventually(t, patience, func() error {
		if got := count() - before; got < n {
			return fmt.Errorf("%d grants instead of %d", got, n)
		}
		return nil
	})
}

// costs compares with the table of docs/reference/operations.md. It does not count how late the machine woke this
// process up.
func (k *cost) costs(f *fleet, operation string) {
	f.t.Helper()
	f.t.Logf("%s: %d grants, %d leases lost, refused for %s in %s, on a machine late by %s", operation, k.grants, k.lost,
		k.refused.Round(time.Millisecond), k.took.Round(time.Millisecond), f.machine.Longest().Round(time.Millisecond))
	row := regexp.MustCompile(`(?m)^\| [^|]*` + regexp.QuoteMeta(operation) + `[^|]* \| ([^|]+) \| ([^|]+) \|`).FindStringSubmatch(operatorPage(f.t, "reference/operations.md").text)
	if row == nil {
		f.t.Fatalf("the table has no row for %q", operation)
	}
	const none = operationTTL // a machine that starves servers makes them that late
	const longest = "`FENCELOCK_MAX_TTL`"
	bound := map[string]time.Duration{"none": none, "as long as it takes": k.took + none, longest: k.took + operationMaxTTL + none}[row[1]]
	if bound == 0 || row[2] != "none" && row[2] != "all" {
		f.t.Fatalf("%s: the table says %q and %q", operation, row[1], row[2])
	}
	if row[1] == longest && k.refused < operationMaxTTL {
		f.t.Errorf("%s: a lock was granted after %s, while an earlier lease may be valid", operation, k.refused)
	}
	if late := f.machine.Longest(); k.refused > bound+3*late {
		f.t.Errorf("%s: requests were refused for %s; the page says %s (the machine is late by %s)", operation, k.refused, row[1], late)
	}
	outlived := k.refused < operationTTL/3 && f.machine.Longest() < time.Second // a slow machine is not the operation's cost
	if row[2] == "none" && k.lost > 0 && outlived {
		f.t.Errorf("%s: %d leases were lost; the page says none", operation, k.lost)
	}
	if row[2] == "all" && k.lost < keptLeases {
		f.t.Errorf("%s: %d of %d leases were lost; the page says all", operation, k.lost, keptLeases)
	}
}
