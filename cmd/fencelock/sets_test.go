package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/internal/testenv"
)

// nodeSets has the Redis nodes of some node sets, and the variables that name them.
func nodeSets(sets [][]*testenv.Redis) string {
	var list []string
	for _, nodes := range sets {
		_, addrs, _ := strings.Cut(redisAddrs(nodes), "=")
		list = append(list, addrs)
	}
	return strings.Join(list, ";")
}

// changeOf returns the environment of servers during a change from the present sets to the next ones. If the next
// ones are nil, it is the environment after the change.
func changeOf(present, next [][]*testenv.Redis) []string {
	env := []string{"FENCELOCK_REDIS_ADDRS=" + nodeSets(present), "FENCELOCK_NODE_DOWN_AFTER=1s", "FENCELOCK_MAX_TTL=10s", "FENCELOCK_DEFAULT_TTL=10s"}
	if next != nil {
		env = append(env, "FENCELOCK_REDIS_NEXT_ADDRS="+nodeSets(next))
	}
	return env
}

// longLeases is an environment with leases that outlive a test.
func longLeases(env []string) []string {
	return append(env, "FENCELOCK_MAX_TTL=10m", "FENCELOCK_DEFAULT_TTL=10m")
}

func runSets(t *testing.T, env []string, args ...string) said {
	t.Helper()
	return finish(t, command(t, env, append([]string{"sets"}, args...)...), "")
}

// printed returns the command that "sets status" prints for an action, without the words "fencelock sets".
func printed(t *testing.T, env []string, action string) []string {
	t.Helper()
	var found []string
	testenv.Eventually(t, time.Minute, func() error { // a new set waits for the longest TTL (rule 12)
		status := runSets(t, env, "status")
		found = regexp.MustCompile(`'fencelock sets (` + action + `[^']*)'`).FindStringSubmatch(status.out)
		if found == nil {
			return errors.New(status.out + status.errOut)
		}
		return nil
	})
	return strings.Fields(found[1])
}

// TestSetsApplyFromHistory changes A to B and B to A. Then it repeats "sets apply" of the first change while all
// servers know only A: the command changes nothing, and no lease is lost.
func TestSetsApplyFromHistory(t *testing.T) {
	testenv.Long(t, "a configuration of sets in the history that cannot be applied")
	t.Parallel()
	nodes := testenv.StartRedisN(t, 2)
	a, b := [][]*testenv.Redis{nodes[:1]}, [][]*testenv.Redis{nodes[1:]}
	f := newFleet(t, 1, longLeases(changeOf(a, nil))...)
	var history []string
	for _, change := range [][2][][]*testenv.Redis{{a, b}, {b, a}} {
		env := longLeases(changeOf(change[0], change[1]))
		f.restartWith(env)
		if history == nil { // B is new
			runSets(t, env, "status").wants(t, "a fresh set", 0, "a running server bootstraps the cluster once the longest TTL has passed", "")
			f.restartWith(append(slices.Clone(env), "FENCELOCK_BOOTSTRAP=new")) // which nobody waits for here
		}
		command := printed(t, env, "apply")
		if history == nil {
			history = command
		}
		runSets(t, env, command...).wants(t, "apply", 0, "the next node sets are in force", "")
		f.restartWith(longLeases(changeOf(change[1], nil)))
	}
	server := f.servers[0]
	lease := server.acquire(`{"resource":"r1","ttl_ms":600000}`)
	extends := func() {
		t.Helper()
		server.wants(server.decided("POST", "/leases/current/extend", `{"ttl_ms":600000}`, "Fencelock-Lease: "+lease.LeaseID), http.StatusOK)
	}
	runSets(t, longLeases(changeOf(a, nil)), "status", "-o", "json").wants(t, "status as JSON", 0, `"now": "the sets of FENCELOCK_REDIS_ADDRS are in force"`, "")
	runSets(t, longLeases(changeOf(a, b)), "plan", "-o", "json").wants(t, "plan as JSON", 0, "\"from\": 1,\n      \"to\": 2,\n      \"share\": 1\n", "")
	runSets(t, longLeases(changeOf(a, nil)), "status").wants(t, "status without next sets", 0, "generation of the maps: 2\nnow: the sets of FENCELOCK_REDIS_ADDRS are in force\nnext: nothing", "")
	runSets(t, longLeases(changeOf(b, nil)), "status").wants(t, "status of other sets", 0, "use the list of the servers that grant", "")

	env := longLeases(changeOf(a, b))
	runSets(t, env, history...).wants(t, "from history", cli.ExitFailed, "", "planned from generation 0 of the maps, and they are at 2")
	extends()
	runSets(t, env, "status").wants(t, "status", 0, "restart the servers with both maps (1 run without), then: 'fencelock sets apply --from 2'", "")
	runSets(t, env, "apply", "--from", "2").wants(t, "a server knows A alone", cli.ExitFailed, "", "1 running servers do not know this change")
	extends()
	runSets(t, env, "apply", "--from", "2", "--force").wants(t, "by force", 0, "the next node sets are in force", "leases that only they extend are lost")
	runSets(t, env, printed(t, env, "revert")...).wants(t, "back", 0, "the node sets of FENCELOCK_REDIS_ADDRS are in force", "")
	server.untilAnswer(http.StatusOK, "POST", "/leases/current/extend", `{"ttl_ms":600000}`, "Fencelock-Lease: "+lease.LeaseID)
}

// TestSets adds a node set to one by all commands: with a lease that moves, one that stays, and a server that does
// not know of the change.
func TestSets(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartRedisN(t, 2)
	present, both := [][]*testenv.Redis{nodes[:1]}, [][]*testenv.Redis{nodes[:1], nodes[1:]}
	untold := start(t, append(longLeases(changeOf(present, nil)), "FENCELOCK_BOOTSTRAP=new")...)
	env := longLeases(changeOf(present, both))
	told := start(t, append(slices.Clone(env), "FENCELOCK_BOOTSTRAP=new")...)
	runSets(t, longLeases(changeOf(present, nil)), "plan").wants(t, "without next sets", cli.ExitUsage, "", "FENCELOCK_REDIS_NEXT_ADDRS is not set")
	runSets(t, longLeases(changeOf(present, present)), "plan").wants(t, "the same sets", cli.ExitFailed, "", "the next node sets are the same as the current ones")
	var plan said
	testenv.Eventually(t, patience, func() error { // the first heartbeat of a server may come before its cluster is bootstrapped
		if plan = runSets(t, env, "plan"); !strings.Contains(plan.out, "run without") {
			return errors.New(plan.out)
		}
		return nil
	})
	plan.wants(t, "plan", 0, "set 2 is added, map closed, ready", "")
	plan.wants(t, "plan", 0, "restart the servers with both maps (1 run without), then: 'fencelock sets apply'", "")
	if !regexp.MustCompile(`(?m)^(4[5-9]|5[0-5])\.\d % of the resources move from set 1 to set 2$`).MatchString(plan.out) {
		t.Errorf("the plan is\n%s", plan.out)
	}

	runSets(t, env, "apply", "--dry-run").wants(t, "a dry run", 0, plan.out, "")
	runSets(t, env, "apply").wants(t, "a server is not told", cli.ExitFailed, "", "1 running servers do not know this change")
	var held []wire.Lease
	for i := range 20 {
		held = append(held, untold.acquire(fmt.Sprintf(`{"resource":"r%d"}`, i)))
	}
	dry := runSets(t, env, "apply", "--dry-run", "--from", "7") // which a dry run does not need
	copied := regexp.MustCompile(`(?m)^(\d+) locks are copied: requests for resources that move wait for about 1s, all others continue$`).FindStringSubmatch(dry.out)
	if copied == nil || dry.code != 0 {
		t.Fatalf("a dry run: %+v", dry)
	}
	runSets(t, env, "apply", "--force").wants(t, "apply", 0, "the next node sets are in force", "1 running servers do not know this change")
	runSets(t, env, "status").wants(t, "status", 0, "the change is complete", "")
	runSets(t, env, "apply").wants(t, "apply again", 0, "the next node sets are in force", "")

	after := start(t, longLeases(changeOf(both, nil))...)
	moved := 0
	for _, lease := range held {
		again := fmt.Sprintf(`{"resource":%q}`, lease.Resource)
		told.wants(told.ask(nil, "POST", "/locks", again), http.StatusConflict)
		moved += int(nodes[1].Client().Exists(t.Context(), "l:"+lease.Resource).Val())
		after.release(lease)
		if next := told.acquire(again); next.FencingToken <= lease.FencingToken {
			t.Errorf("%s: token %d after %d", lease.Resource, next.FencingToken, lease.FencingToken)
		}
	}
	if moved == 0 || moved == len(held) || copied[1] != strconv.Itoa(moved) {
		t.Errorf("%d of %d leases have moved, and the dry run said %s", moved, len(held), copied[1])
	}
	untold.wants(untold.ask(nil, "POST", "/locks", `{"resource":"another"}`), http.StatusServiceUnavailable)
}

// steady sends requests for resources that no other caller wants, and notes how long each took.
type steady struct {
	mu    sync.Mutex
	took  []time.Duration
	ended sync.WaitGroup
	stop  context.CancelFunc
}

func startSteady(t *testing.T, urls string) *steady {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &steady{stop: stop}
	c, err := client.New(strings.Split(urls, ","))
	if err != nil {
		t.Fatal(err)
	}
	const workers, names, pause = 4, 50, 5 * time.Millisecond
	for i := range workers {
		s.ended.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				began := time.Now()
				lease, err := c.TryAcquire(t.Context(), fmt.Sprintf("steady/%d/%d", i, k%names))
				acquired := time.Since(began)
				if err == nil {
					began = time.Now()
					err = lease.Release(t.Context())
				}
				if err != nil && t.Context().Err() == nil {
					t.Errorf("steady: %v", err)
				}
				s.mu.Lock()
				s.took = append(s.took, acquired, time.Since(began))
				s.mu.Unlock()
				<-time.After(pause)
			}
		})
	}
	return s
}

// since returns the durations of the requests since the last call.
func (s *steady) since() (took []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	took, s.took = s.took, nil
	return took
}

// exclusive notes which caller works on which resource. Two at once, or a token that does not rise, are a violation.
type exclusive struct {
	mu     sync.Mutex
	works  map[string]bool
	tokens map[string]fencing.Token
	grants int
	wrong  []error

	refused int           // acquires of the demand that ended with an error
	longest time.Duration // since the last grant to that caller
}

// demand says how many callers there are: some keep a lease each, others pass a few resources on.
type demand struct {
	kept, passing, resources int
	ttl                      time.Duration
	refusals                 bool // an acquire may be refused: the caller tries again
}

// usual is a demand of few callers, none of which may be refused.
func usual() demand { return demand{kept: 8, passing: 12, resources: 4, ttl: 6 * time.Second} }

func (e *exclusive) enter(resource string, token fencing.Token) (leave func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.grants++
	if e.works[resource] {
		e.wrong = append(e.wrong, fmt.Errorf("%s: two work on it", resource))
	}
	if token <= e.tokens[resource] {
		e.wrong = append(e.wrong, fmt.Errorf("%s: token %d after %d", resource, token, e.tokens[resource]))
	}
	e.works[resource], e.tokens[resource] = true, token
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.works[resource] = false
	}
}

func (e *exclusive) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.grants
}

// refuse notes that an acquire was refused, and how long after the caller's last grant.
func (e *exclusive) refuse(after time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.refused++
	e.longest = max(e.longest, after)
}

// startExclusive starts many callers that want few resources, and some that keep their leases.
func startExclusive(t *testing.T, urls string, d demand) (e *exclusive, end func()) {
	t.Helper()
	e = &exclusive{works: map[string]bool{}, tokens: map[string]fencing.Token{}}
	ctx, stop := context.WithCancel(t.Context())
	var ended sync.WaitGroup
	do := func(c *client.Client, resource string, hold time.Duration) (granted bool) {
		err := c.Do(t.Context(), resource, func(work context.Context, lease *client.Lease) error {
			granted = true
			defer e.enter(resource, lease.Token())()
			select {
			case <-time.After(hold):
			case <-ctx.Done():
			case <-work.Done():
			}
			return context.Cause(work)
		}, client.TTL(d.ttl))
		if err != nil && t.Context().Err() == nil && (granted || !d.refusals) {
			t.Errorf("%s: %v", resource, err)
		}
		return granted
	}
	c, err := client.New(strings.Split(urls, ","))
	if err != nil {
		t.Fatal(err)
	}
	for i := range d.kept {
		ended.Go(func() {
			for !do(c, fmt.Sprint("kept/", i), time.Hour) && ctx.Err() == nil {
				e.refuse(0)
			}
		})
	}
	for i := range d.passing {
		ended.Go(func() {
			last := time.Now()
			for k := i; ctx.Err() == nil; k++ {
				if granted := do(c, fmt.Sprint("passed/", k%d.resources), 20*time.Millisecond); !granted {
					e.refuse(time.Since(last))
					continue
				}
				last = time.Now()
			}
		})
	}
	return e, func() { stop(); ended.Wait() }
}

// TestSoakSetsChange changes two node sets to three and back, each of three Redis, while
// two servers are under load.
func TestSoakSetsChange(t *testing.T) {
	testenv.Soak(t, "what a change of node sets costs its callers")
	nodes := testenv.StartRedisN(t, 9)
	two := [][]*testenv.Redis{nodes[:3], nodes[3:6]}
	three := append(slices.Clone(two), nodes[6:])
	f := newFleet(t, 2, changeOf(two, nil)...)
	e, end := startExclusive(t, f.direct(), usual())
	load := startSteady(t, f.direct())
	const baseline = 10 * time.Second
	<-time.After(baseline)
	before := load.since()
	slices.Sort(before)
	p99 := before[len(before)*99/100]

	for _, change := range []struct{ from, to [][]*testenv.Redis }{{two, three}, {three, two}} {
		env := changeOf(change.from, change.to)
		f.restartWith(env)
		applied := runSets(t, env, printed(t, env, "apply")...)
		applied.wants(t, "apply", 0, "the next node sets are in force", "")
		t.Logf("from %d sets to %d: %s", len(change.from), len(change.to), applied.out)
		f.restartWith(changeOf(change.to, nil))
	}
	<-time.After(time.Second)
	load.stop()
	load.ended.Wait()
	during := load.since()
	end()

	slow := 0
	for _, took := range during {
		if took > 2*p99 {
			slow++
		}
	}
	slices.Sort(during)
	t.Logf("%d requests before, p99 %s; %d during the changes, p50 %s, p99 %s, longest %s: %.1f %% slower than twice the earlier p99; %d leases passed on",
		len(before), p99, len(during), during[len(during)/2], during[len(during)*99/100], during[len(during)-1], 100*float64(slow)/float64(len(during)), e.grants)
	if 10*slow > len(during) {
		t.Errorf("%d of %d requests were slower than twice the earlier p99", slow, len(during))
	}
	for _, err := range e.wrong {
		t.Error(err)
	}
}

// startChanging starts servers on the present sets, and restarts them with the lists of the present and the next
// sets. The next list may have new sets.
func startChanging(t *testing.T, servers int, present, both []string) *fleet {
	t.Helper()
	f := newFleet(t, servers, present...)
	f.servers[0].release(f.servers[0].acquire(`{"resource":"the present sets are open"}`))
	f.restartWith(append(slices.Clone(both), "FENCELOCK_BOOTSTRAP=new"))
	return f
}

// restartWith restarts all servers in order, with another environment.
func (f *fleet) restartWith(env []string) {
	f.t.Helper()
	f.env = env
	for i := range f.servers {
		f.restart(i)
	}
}
