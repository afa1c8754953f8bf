package archtest

import (
	"fmt"
	"slices"
	"strings"
)

// module is the path before every package of ours.
const module = "github.com/fencelock/fencelock"

// rule says what the production code of a package, and of the packages below
// it that have no rule of their own, may import. Paths are relative to the module.
type rule struct {
	pkg string
	// ours are the packages of this module that it may import, each with all below
	// it that has no rule of its own. A package always may import below itself.
	ours []string
	// apart says that the packages below it may not import each other.
	apart bool
	// others says whether it may import other modules.
	others bool
	// never are packages of the standard library that would be a mistake here.
	never []string
	// kit marks a package made for tests: only tests and kits may import it.
	kit bool
	why string
}

// everything stands for all packages but cmd.
const everything = "*"

var rules = []rule{
	{
		pkg: ".",
		why: "the module's root holds openapi.yaml and nothing else",
	},
	{
		pkg: "fencing",
		why: "applications import it next to their storage, so it brings nothing with it",
	},
	{
		pkg: "fencing/fencinggrpc", ours: []string{"fencing"}, others: true,
		why: "tokens through gRPC, in a module of its own so that only its users get gRPC",
	},
	{
		pkg: "api/wire",
		why: "server and client share these structs; a leaf cannot make them share more",
	},
	{
		pkg: "migrations",
		why: "SQL files, embedded",
	},
	{
		pkg: "lockcore", ours: []string{"fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "the vocabulary of a lock service, and what the API calls: no algorithm, no Redis, no HTTP",
	},
	{
		pkg: "lockcore/node", ours: []string{"fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "the contract between the algorithm and its nodes",
	},
	{
		pkg: "lockcore/blocked", ours: []string{"lockcore", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "who waits for whom, from what any service lists: no node, no HTTP",
	},
	{
		pkg: "internal/pause",
		why: "a leaf",
	},
	{
		pkg: "lockcore/keyring", ours: []string{"lockcore/node", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "texts that only this cluster seals; it knows nothing of who asks or votes",
	},
	{
		pkg: "lockcore/redlock", ours: []string{"lockcore", "internal/pause", "lockcore/keyring", "lockcore/node", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "one quorum: no Redis, no HTTP, so that a simulation can run it as it is",
	},
	{
		pkg: "lockcore/compose", ours: []string{"lockcore", "internal/pause", "lockcore/keyring", "lockcore/redlock", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "several resources over what locks one; it knows no node and no map of node sets",
	},
	{
		pkg: "lockcore/sets", ours: []string{"lockcore", "lockcore/compose", "lockcore/keyring", "lockcore/node", "lockcore/redlock", "lockcore/redlock/membership", "lockcore/redlock/quorum", "lockcore/redlock/random", "lockcore/redlock/settings", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "which set has a resource, and how that changes; the votes are redlock's",
	},
	{
		pkg: "lockcore/redlock/quorum", ours: []string{"fencing"}, never: []string{"context", "sync", "net"},
		why: "votes in, a verdict out: no I/O, no clock, no goroutine",
	},
	{
		pkg: "lockcore/redlock/settings", ours: []string{"lockcore", "lockcore/keyring", "lockcore/node", "lockcore/redlock/quorum", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "what an operator chooses, for every layer of the service over nodes; no layer copies it",
	},
	{
		pkg: "lockcore/redlock/membership", ours: []string{"lockcore", "lockcore/node", "lockcore/redlock/quorum", "lockcore/redlock/random", "lockcore/redlock/settings", "internal/pause", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "who may vote; it knows nothing of leases",
	},
	{
		pkg: "lockcore/redlock/waitqueue", ours: []string{"lockcore", "lockcore/node", "lockcore/redlock/quorum", "lockcore/redlock/random", "internal/pause"}, never: []string{"net", "net/http", "database/sql"},
		why: "tickets, and whose place is first; it acquires nothing",
	},
	{
		pkg: "lockcore/redlock/cleanup", ours: []string{"lockcore/node", "internal/pause"}, never: []string{"net", "net/http", "database/sql"},
		why: "sends what ends a vote, a lock or a ticket until a node has answered; which, its callers decide",
	},
	{
		pkg: "lockcore/redlock/order", ours: []string{"lockcore", "fencing"}, never: []string{"context", "net", "time"},
		why: "grants in, a broken invariant out: no I/O, no clock, no goroutine",
	},
	{
		pkg: "lockcore/redlock/internal/fakenode", ours: []string{"lockcore/node", "lockcore/nodetest", "fencing"}, kit: true,
		why: "a node whose answers a test writes",
	},
	{
		pkg: "lockcore/redlock/internal/scenario", others: true, kit: true,
		why: "text scenarios of the algorithm's pure parts",
	},
	{
		pkg: "storage", ours: []string{"lockcore", "lockcore/node", "fencing", "migrations"}, apart: true, others: true,
		why: "adapters; they know what they implement and not who uses them",
	},
	{
		pkg: "storage/boltguard", ours: []string{"fencing", "storage/boltfile"}, others: true,
		why: "its records are sealed as boltfile seals",
	},
	{
		pkg: "storage/boltstore", ours: []string{"lockcore/node", "lockcore/replica", "storage/boltfile"}, others: true,
		why: "its rows are sealed as boltfile seals",
	},
	{
		pkg: "storage/overlay", ours: []string{"lockcore/node", "lockcore/replica"},
		why: "what the transactions of several Stores have in common, whatever they keep rows in",
	},
	{
		pkg: "storage/rowlog", ours: []string{"storage/overlay"}, others: true,
		why: "what Stores have in common that keep their rows as a log",
	},
	{
		pkg: "storage/optimistic", ours: []string{"internal/pause", "lockcore/node", "lockcore/replica", "storage/overlay", "storage/rowlog"}, others: true,
		why: "what Stores have in common whose service has no transactions that read",
	},
	{
		pkg: "storage/pgstore", ours: []string{"internal/pause", "lockcore/node", "lockcore/replica", "storage/overlay", "migrations"}, others: true,
		why: "a Store of the replica",
	},
	{
		pkg: "storage/redisnode", ours: []string{"internal/pause", "lockcore", "lockcore/node", "fencing", "internal/pemfile"}, others: true,
		why: "a node",
	},
	{
		pkg: "storage/etcdstore", ours: []string{"internal/pause", "lockcore/node", "lockcore/replica", "storage/optimistic", "storage/rowlog", "internal/pemfile"}, others: true,
		why: "a Store of the replica",
	},
	{
		pkg: "storage/zkstore", ours: []string{"internal/pause", "lockcore/replica", "storage/optimistic", "storage/rowlog"}, others: true,
		why: "a Store of the replica",
	},
	{
		pkg: "api", ours: []string{"internal/pause", "lockcore", "lockcore/blocked", "fencing", "api/wire"}, others: true,
		why: "HTTP over interfaces; it works the same over every storage",
	},
	{
		pkg: "api/edge", others: true,
		why: "a connection before its requests mean anything; it knows callers by name only",
	},
	{
		pkg: "client", ours: []string{"api/wire", "fencing"}, others: true,
		why: "it speaks HTTP; a client that knew lockcore could vote",
	},
	{
		pkg: "fencelocktest", others: true, kit: true,
		ours: []string{".", "api", "api/edge", "api/events", "client", "fencing", "lockcore/node", "lockcore/replica", "lockcore/sets", "storage/boltguard", "storage/boltstore"},
		why:  "applications import it in their tests: the server itself, in their process",
	},
	{
		pkg: "cmd", ours: []string{everything}, others: true, never: []string{"testing"},
		why: "main wires everything together",
	},
	{
		pkg: "internal/docscheck",
		why: "it reads Markdown; what it runs are programs",
	},
	{
		pkg: "internal/pemfile",
		why: "files of certificates; it does not know whose",
	},
	{
		pkg: "internal/demo", ours: []string{"api/console", "api/wire", "client", "fencing"},
		why: "it shows what a user sees: the service over HTTP; one that knew lockcore would prove less",
	},
	{
		pkg: "lockcore/replica", ours: []string{"lockcore", "lockcore/node", "fencing"}, never: []string{"net", "net/http", "database/sql"},
		why: "the rules of a node over a Store: it does not know which",
	},
	{
		pkg: "lockcore/replica/memstore", ours: []string{"lockcore/node", "lockcore/replica"}, kit: true,
		why: "a Store in memory, with faults",
	},
	{
		pkg: "lockcore/replica/storetest", ours: []string{"fencing", "lockcore/node", "lockcore/replica"}, kit: true,
		why: "the suite that every Store passes",
	},
	{
		pkg: "lockcore/nodetest", ours: []string{"lockcore", "lockcore/node", "lockcore/replica", "lockcore/replica/memstore", "fencing"}, others: true, kit: true,
		why: "the suite that every Node passes",
	},
	{
		pkg: "lockcore/servicetest", ours: []string{"lockcore", "fencing"}, kit: true,
		why: "the suite that every Service passes; it knows no kind of service",
	},
	{
		pkg: "fencing/guardtest", ours: []string{"fencing"}, others: true, kit: true,
		why: "the suite that every Guard passes",
	},
	{
		pkg: "api/leases", ours: []string{"api/internal/deadlines", "lockcore"},
		why: "a table in memory: whose lease it is, it takes from lockcore; who grants leases is not its business",
	},
	{
		pkg: "api/activity",
		why: "a memory of the last hour: it does not know what happened, and to whom it is shown",
	},
	{
		pkg: "api/places",
		why: "a table in memory: who waits, and where, is not its business",
	},
	{
		pkg: "api/access", others: true,
		why: "who calls and what they may do, whatever it is that they call",
	},
	{
		pkg: "cmd/fencelock/internal/version",
		why: "a leaf",
	},
	{
		pkg: "cmd/fencelock/internal/cli", ours: []string{"client", "cmd/fencelock/internal/screen", "cmd/fencelock/internal/supervise"}, others: true,
		why: "what every command has; it knows none of them",
	},
	{
		pkg: "cmd/fencelock/internal/client", ours: []string{"api/wire", "client", "cmd/fencelock/internal/cause", "cmd/fencelock/internal/cli", "cmd/fencelock/internal/config", "cmd/fencelock/internal/screen", "cmd/fencelock/internal/supervise", "fencing", "lockcore"}, others: true,
		why: "it asks servers by HTTP; a command that knew the server would work on no other",
	},
	{
		pkg: "cmd/fencelock/internal/server", ours: []string{"internal/pause", ".", "api", "api/access", "api/edge", "api/events", "cmd/fencelock/internal/backend", "cmd/fencelock/internal/check", "cmd/fencelock/internal/cli", "cmd/fencelock/internal/config", "cmd/fencelock/internal/keyfile", "cmd/fencelock/internal/logging", "cmd/fencelock/internal/reload", "cmd/fencelock/internal/screen", "cmd/fencelock/internal/version", "fencing", "internal/pemfile", "lockcore", "lockcore/keyring", "storage/redisnode"}, others: true,
		why: "it wires a server together, and asks none; main hands it what the client's commands need",
	},
	{
		pkg: "cmd/fencelock/internal/operator", ours: []string{"internal/pause", "api/access", "cmd/fencelock/internal/backend", "cmd/fencelock/internal/cause", "cmd/fencelock/internal/cli", "cmd/fencelock/internal/config", "cmd/fencelock/internal/keyfile", "cmd/fencelock/internal/logging", "cmd/fencelock/internal/screen", "lockcore", "lockcore/redlock/membership", "lockcore/redlock/settings", "lockcore/sets", "storage/mysqlguard", "storage/pgguard", "storage/redisnode"}, others: true,
		why: "it works on nodes and databases themselves; it neither is a server nor asks one",
	},
	{
		pkg: "cmd/fencelock/internal/logging", ours: []string{"cmd/fencelock/internal/cli", "cmd/fencelock/internal/config"},
		why: "how a log is written; not what is in it",
	},
	{
		pkg: "cmd/fencelock/internal/keyfile", ours: []string{"fencing"},
		why: "files of keys; it does not know what they seal",
	},
	{
		pkg: "cmd/fencelock/internal/config", ours: []string{"api/edge", "cmd/fencelock/internal/engine", "lockcore"}, others: true,
		why: "it reads and checks the environment; the values are others' to use",
	},
	{
		pkg: "cmd/fencelock/internal/engine", ours: []string{"api/events", "lockcore/replica", "storage/etcdstore", "storage/pgstore", "storage/zkstore"},
		why: "which stores there are and what is different about each; who opens them, it does not know",
	},
	{
		pkg: "cmd/fencelock/internal/reload",
		why: "files that change; it does not know what is in them",
	},
	{
		pkg: "cmd/fencelock/internal/cause", others: true,
		why: "it explains errors of networks and drivers; it does not know what was asked",
	},
	{
		pkg: "cmd/fencelock/internal/check", ours: []string{"cmd/fencelock/internal/cause", "cmd/fencelock/internal/config", "cmd/fencelock/internal/engine", "lockcore/node", "lockcore/sets", "lockcore/redlock/membership", "lockcore/redlock/quorum", "storage/redisnode", "storage/mysqlguard", "storage/pgguard", "storage/pgstore"}, others: true,
		why: "it reads what a configuration points to; it starts no server",
	},
	{
		pkg: "cmd/fencelock/internal/screen", others: true,
		why: "what a terminal shows of any text; it does not know what the text is about",
	},
	{
		pkg: "cmd/fencelock/internal/supervise", others: true,
		why: "it ends processes before a deadline, and need not know whose",
	},
	{
		pkg: "internal/vacancy", ours: []string{"api/wire"}, kit: true,
		why: "it judges what servers say from outside, for chaos and for clients under faults",
	},
	{
		pkg: "internal/testenv", others: true, kit: true,
		why: "real servers for tests; it knows nothing of the product",
	},
	{
		pkg: "internal/tiers",
		why: "a program that reads the tests' source",
	},
	{
		pkg: "internal/notices",
		why: "a program that reads what a binary was built from",
	},
	{
		pkg: "internal/way", ours: []string{"api", "api/edge", "api/events", "api/wire", "lockcore/node", "lockcore/sets", "storage/redisnode"}, others: true, kit: true,
		why: "it serves as cmd/fencelock does, and counts what runs",
	},
	{
		pkg: "internal/crowdtest", ours: []string{"internal/testenv", "lockcore", "lockcore/node", "lockcore/servicetest", "lockcore/sets"}, kit: true,
		why: "it puts load on a node, and the store's own tests look at what is in it",
	},
	{
		pkg: "chaos", ours: []string{"internal/testenv", "internal/vacancy", "api/wire"}, others: true, kit: true,
		why: "it breaks the built program from outside and judges it by its HTTP API; what knew the inside would believe it",
	},
	{
		pkg: "internal/sim", ours: []string{"lockcore", "lockcore/keyring", "lockcore/node", "lockcore/servicetest", "lockcore/sets", "lockcore/redlock/quorum", "lockcore/nodetest", "lockcore/replica", "lockcore/replica/memstore", "fencing"}, kit: true,
		why: "it owns the clock and every message, and runs the algorithm as it is",
	},
	{
		pkg: "clients/conformance", ours: []string{"api/wire", "chaos", "internal/testenv"}, kit: true,
		why: "it judges clients by what they send, in any language; what knew a client would believe it",
	},
	{
		pkg: "clients/conformance/drivers", ours: []string{"client"}, apart: true,
		why: "what a client's users would write",
	},
	{
		pkg: "clients/faults", ours: []string{"api/wire", "internal/testenv", "internal/vacancy", "storage/mysqlguard", "storage/pgguard"}, others: true, kit: true,
		why: "it breaks real servers under clients in any language, and judges these by the database",
	},
	{
		pkg: "clients/python",
		why: "the Python client; only its tests are in Go",
	},
	{
		pkg: "clients/typescript",
		why: "the TypeScript client; only its tests are in Go",
	},
	{
		pkg: "clients/java",
		why: "the Java client; only its tests are in Go",
	},
	{
		pkg: "examples", ours: []string{"storage/mysqlguard", "storage/pgguard", "fencing", "client"}, others: true,
		why: "what an application would write, with what an application would import",
	},
	{
		pkg: "internal/apicheck",
		why: "it reads Go files",
	},
	{
		pkg: "internal/clienttest",
		why: "the client's tests with a real service, which its module does not know",
	},
	{
		pkg: "internal/clienttest/faultworker", ours: []string{"client", "fencing", "storage/pgguard"}, others: true,
		why: "what an application would write; the fault run judges it from outside",
	},
	{
		pkg: "internal/pgguardtest",
		why: "the tests of storage/pgguard with a real Postgres, which its module cannot start",
	},
	{
		pkg: "internal/mysqlguardtest",
		why: "the tests of storage/mysqlguard with a real MariaDB, which its module cannot start",
	},
	{
		pkg: "internal/archtest",
		why: "this package",
	},
}

// edge is one import.
type edge struct {
	from string // the importing package, relative to the module
	to   string // the import path as written
	test bool   // in a _test.go file
}

// checkRules returns what is wrong with the rules themselves: a package that is not
// there, one that is ruled twice, and a permission for what is not there. exists
// tells whether the module has a package, or packages below it.
func checkRules(rules []rule, exists func(pkg string) bool) (errs []error) {
	seen := make(map[string]bool)
	for _, r := range rules {
		if seen[r.pkg] {
			errs = append(errs, fmt.Errorf("package %s is ruled twice", r.pkg))
		}
		seen[r.pkg] = true
		for _, pkg := range append([]string{r.pkg}, r.ours...) {
			if pkg != everything && !exists(pkg) {
				errs = append(errs, fmt.Errorf("the rule of %s names %s, which does not exist", r.pkg, pkg))
			}
		}
	}
	return errs
}

// check returns what is wrong with an import, or nil.
func check(e edge) error {
	to, ours := inModule(e.to)
	from, covered := ruleFor(e.from)
	switch {
	case !covered:
		return fmt.Errorf("package %s has no import rule; add one to internal/archtest/rules_test.go", e.from)
	case ours && within(to, "cmd") && program(to) != program(e.from):
		return fmt.Errorf("%s imports %s: no package imports cmd", e.from, to)
	case e.test:
		return nil
	case ours && isKit(to) && !from.kit:
		return fmt.Errorf("%s imports %s: test kits are imported by tests alone", e.from, to)
	case ours && !within(to, e.from) && !allows(from, to):
		return fmt.Errorf("%s imports %s: it may import only %v of this module (%s)", e.from, to, from.ours, from.why)
	case !ours && isStandard(e.to) && slices.Contains(from.never, e.to):
		return fmt.Errorf("%s imports %s (%s)", e.from, e.to, from.why)
	case !ours && !isStandard(e.to) && !from.others:
		return fmt.Errorf("%s imports %s: besides this module it may import only the standard library (%s)",
			e.from, e.to, from.why)
	}
	return nil
}

// ruleFor is the rule of the package or of the nearest one above it.
func ruleFor(pkg string) (best rule, found bool) {
	for _, r := range rules {
		if within(pkg, r.pkg) && len(r.pkg) >= len(best.pkg) {
			best, found = r, true
		}
	}
	return best, found
}

// allows says whether the rule lists the package or one above it, or whether
// both lie in one tree whose packages may know each other.
func allows(r rule, to string) bool {
	if of, covered := ruleFor(to); covered && of.pkg == r.pkg && !r.apart {
		return true
	}
	return slices.ContainsFunc(r.ours, func(a string) bool { return a == everything || covers(a, to) })
}

// covers says whether a permission for a package holds for one below it: unless that
// has a rule of its own, and so is something else.
func covers(a, to string) bool {
	of, _ := ruleFor(to)
	return within(to, a) && len(of.pkg) <= len(a)
}

func isKit(pkg string) bool {
	r, found := ruleFor(pkg)
	return found && r.kit
}

// inModule turns an import path into one relative to the module.
func inModule(path string) (rel string, ours bool) {
	if path == module {
		return ".", true
	}
	return strings.CutPrefix(path, module+"/")
}

// within says whether the package is root or below it.
func within(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }

// program is the folder of a program, cmd/name, for a package in it.
func program(pkg string) string {
	parts := strings.SplitN(pkg, "/", 3)
	return strings.Join(parts[:min(2, len(parts))], "/")
}

// isStandard says whether an import path is of the standard library, whose
// first element alone has no dot.
func isStandard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}
