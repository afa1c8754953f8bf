// Package faults runs a client in any language against real servers. Meanwhile the servers, a node and the
// client's processes are killed, frozen and started again. Then it judges what the client did.
//
// A worker is a program that uses the client to deposit money into guarded accounts under locks. Its
// arguments are the servers' URLs, the number of deposits that it makes at the same time, and the TTL in
// milliseconds; DATABASE_URL names the database. For each deposit it takes the lock "accounts/n" of one of
// the accounts 1 to 5, works for a while, claims, inserts a row into effects (id, account), and adds 1 to the
// account's balance, which it has read. It ends after its standard input has ended. It writes lines of JSON:
//
//	{"effect": id}                          a deposit that was committed
//	{"work": [account, begin, end, until, starved], "at": what}
//	                                        it worked on an account from begin to end, under a lease that was valid until
//	                                        "until" (seconds on the machine's monotonic clock). starved is how long its
//	                                        threads waited for a processor between until and end; "at" is what it did last
//	{"call": [beyond, starved]}             a call for a lease ended beyond seconds after its wait, in which its threads
//	                                        waited for a processor for starved seconds
//	{"errors": {…}, "leaks": {…}}           at its end: the errors by name, and how many threads, sockets, … are left
//
// A process that gets no processor stops its work only when it runs again. No client can do better, and the
// guard refuses what such a process writes. Linux counts for each thread how long it was ready to run but had
// no processor (the second number of /proc/self/task/*/schedstat). The client is not blamed for that time.
package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/storage/pgguard"
)

// Accounts makes a database with a protected table of a thousand accounts, shop.accounts (id, balance).
func Accounts(t *testing.T) (url string) {
	t.Helper()
	url = testenv.Postgres(t).OwnerURL()
	if err := pgguard.Install(t.Context(), url); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		"CREATE SCHEMA shop",
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = shop', current_database()); END $$",
		"CREATE TABLE shop.accounts (id int PRIMARY KEY, balance bigint NOT NULL)",
		"INSERT INTO shop.accounts SELECT n, 0 FROM generate_series(1, 1000) n",
		"SELECT fencing.protect('shop.accounts', $$'accounts/' || id$$)",
	} {
		execSQL(t, url, sql)
	}
	return url
}

func execSQL(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// workTTL is the TTL of the workers' leases.
const workTTL = 3 * time.Second

// Run runs the commands as workers, in an environment, for a time. It checks that the guard loses no deposit
// and doubles none; that no work outlives its lease by more than 100 ms during which its process could run,
// and no two workers work on one account at once; that no call for a lease takes more than a second longer
// than its wait; that none of the resources that the workers count is left at their end; and that no account
// that is waited for is idle or orphaned for more than a second per fault.
func Run(t *testing.T, d time.Duration, commands [][]string, env ...string) {
	t.Helper()
	testenv.NeedsServer(t)
	database := Accounts(t)
	execSQL(t, database, "CREATE TABLE shop.effects (id text PRIMARY KEY, account int NOT NULL)")
	s := startStand(t)
	book := &book{effects: map[string]bool{}}
	var workers []*worker
	for _, command := range commands {
		command = append(slices.Clip(command), s.urls(), "6", fmt.Sprint(workTTL.Milliseconds()))
		workers = append(workers, startWorker(t, book, command, append(env, "DATABASE_URL="+database)))
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	watch := startWatch(ctx, s.servers)
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.fault(t, workers)
	}
	stop()
	seen := watch.Looks()
	t.Logf("faults: %v", s.count())
	for _, w := range workers {
		w.end(t)
	}
	book.judge(t, database, len(workers))
	judgeVacant(t, seen, book.work, s.faults)
}

// stand is two servers on three nodes, with the faults so far.
type stand struct {
	servers []*testenv.Fencelock
	nodes   []*testenv.Redis
	faults  []trouble
}

// count returns how often each fault happened.
func (s *stand) count() map[string]int {
	n := map[string]int{}
	for _, f := range s.faults {
		n[f.name]++
	}
	return n
}

func startStand(t *testing.T) *stand {
	t.Helper()
	s := &stand{nodes: testenv.StartRedisN(t, 3)}
	var nodes []string
	for _, n := range s.nodes {
		nodes = append(nodes, n.URL())
	}
	for range 2 {
		s.servers = append(s.servers, testenv.StartFencelock(t,
			"FENCELOCK_REDIS_ADDRS="+strings.Join(nodes, ","), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_DATA=", "FENCELOCK_MAX_TTL=5s", "FENCELOCK_NODE_TIMEOUT=100ms",
			"FENCELOCK_DEFAULT_TTL=5s",
		))
	}
	return s
}

func (s *stand) urls() string {
	return s.servers[0].URL() + "," + s.servers[1].URL()
}

// fault makes one fault happen, and ends it.
func (s *stand) fault(t *testing.T, workers []*worker) {
	t.Helper()
	server := s.servers[rand.IntN(len(s.servers))]
	down := time.Duration(rand.IntN(2500)) * time.Millisecond
	kinds := []struct {
		name string
		do   func()
	}{
		{"a server is killed", func() { server.Kill(); time.Sleep(down); server.Restart() }},
		{"both servers are killed", func() {
			for _, each := range s.servers {
				each.Kill()
			}
			time.Sleep(down / 2)
			for _, each := range s.servers {
				each.Restart()
			}
		}},
		{"a server is frozen", func() { server.Freeze(); time.Sleep(2 * down); server.Thaw() }},
		{"both servers are frozen for longer than a lease lives", func() {
			for _, each := range s.servers {
				each.Freeze()
			}
			time.Sleep(workTTL + down)
			for _, each := range s.servers {
				each.Thaw()
			}
		}},
		{"a node is killed", func() { s.nodes[0].Kill(); time.Sleep(down); s.nodes[0].Restart() }},
		{"a worker is killed", func() { workers[rand.IntN(len(workers))].killed(t) }},
	}
	kind := kinds[rand.IntN(len(kinds))]
	fault := trouble{name: kind.name, from: now(), server: strings.Contains(kind.name, "server"), worker: strings.Contains(kind.name, "worker")}
	kind.do()
	fault.to = now()
	s.faults = append(s.faults, fault)
	time.Sleep(time.Duration(1000+rand.IntN(2000)) * time.Millisecond)
}
