package api_test

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// bearer is the secret of a name in these tests, as a header line.
func bearer(name string) string { return "Authorization: Bearer secret-of-" + name }

// line is a line of the access file for name, known by its bearer token.
func line(name, rest string) string {
	return fmt.Sprintf("%s token=sha256:%x %s\n", name, sha256.Sum256([]byte("secret-of-"+name)), rest)
}

// withAccess is access control by these lines.
func withAccess(tb testing.TB, lines ...string) func(*api.Options) {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "access")
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")+"end\n"), 0o600); err != nil {
		tb.Fatal(err)
	}
	keeper, err := access.Open(path, nil)
	if err != nil {
		tb.Fatal(err)
	}
	return func(o *api.Options) { o.Access = keeper }
}

// requests is a request to every operation of the contract, about a resource.
func requests(resource, lease string) map[string][]string {
	return map[string][]string{
		"POST /locks":                 {"POST", "/locks", `{"resource":"` + resource + `"}`},
		"POST /locks/batch":           {"POST", "/locks/batch", `{"operations":[{"operation":"acquire","body":{"resource":"` + resource + `"}}]}`},
		"POST /cancel":                {"POST", "/cancel", `{"resource":"` + resource + `"}`, "Idempotency-Key: key"},
		"GET /locks":                  {"GET", "/locks", ""},
		"GET /locks/*":                {"GET", "/locks/" + resource, ""},
		"GET /blocked":                {"GET", "/blocked?name=" + resource, ""},
		"POST /breaks":                {"POST", "/breaks", `{"resource":"` + resource + `","any":true}`},
		"GET /guarded":                {"GET", "/guarded", ""},
		"GET /guarded/*":              {"GET", "/guarded/" + resource, ""},
		"PUT /guarded/*":              {"PUT", "/guarded/" + resource, "1", "Fencing-Token: 1"},
		"DELETE /guarded/*":           {"DELETE", "/guarded/" + resource, "", "Fencing-Token: 1"},
		"POST /guarded/*":             {"POST", "/guarded/" + resource, "", "Fencing-Token: 1"},
		"GET /history":                {"GET", "/history?resource=" + resource, ""},
		"GET /leases/current":         {"GET", "/leases/current", "", "Fencelock-Lease: " + lease},
		"POST /leases/current/extend": {"POST", "/leases/current/extend", "", "Fencelock-Lease: " + lease},
		"DELETE /leases/current":      {"DELETE", "/leases/current", "", "Fencelock-Lease: " + lease},
		"GET /events":                 {"GET", "/events", ""},
		"GET /":                       {"GET", "/", ""},
		"GET /console/":               {"GET", "/console/", ""},
		"GET /console":                {"GET", "/console", ""},
		"GET /console/{file}":         {"GET", "/console/app.js", ""},
		"GET /activity":               {"GET", "/activity", ""},
		"GET /whoami":                 {"GET", "/whoami", ""},
		"GET /healthz":                {"GET", "/healthz", ""},
		"GET /readyz":                 {"GET", "/readyz", ""},
		"GET /openapi.yaml":           {"GET", "/openapi.yaml", ""},
		"GET /problems/{type}":        {"GET", "/problems/forbidden", ""},
	}
}

func (s *service) send(r []string, header ...string) answered {
	s.t.Helper()
	return s.call(r[0], r[1], r[2], append(slices.Clone(r[3:]), header...)...)
}

// pathOf is a route's pattern without its method.
func pathOf(pattern string) string {
	_, path, _ := strings.Cut(pattern, " ")
	return path
}

// wantsCallsTable compares the table of docs/reference/access.md, or writes it.
func wantsCallsTable(t *testing.T, table string) {
	t.Helper()
	text, err := os.ReadFile(accessPage)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), callsBegin)
	_, after, ends := strings.Cut(rest, callsEnd)
	if !begins || !ends {
		t.Fatalf("%s lacks %q or %q", accessPage, callsBegin, callsEnd)
	}
	want := before + callsBegin + table + callsEnd + after
	if *updatePage {
		if err := os.WriteFile(accessPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	} else if string(text) != want {
		t.Errorf("%s is not what the code says; write it with: go test ./api -run TestEveryRouteIsDecided -update", accessPage)
	}
}

const accessPage = "../docs/reference/access.md"

// The table of docs/reference/access.md, which this test writes, is between these.
const (
	callsBegin = "<!-- calls: written by go test ./api -run TestEveryRouteIsDecided -update -->\n\n"
	callsEnd   = "\n<!-- end of calls -->"
)

// A right is over something, which the decision's subject reads before the right is judged.
func TestEveryRightHasASubject(t *testing.T) {
	if routes := api.Baseless(); len(routes) > 0 {
		t.Errorf("%v ask for a right, and say nothing of what it is over", routes)
	}
}

// TestEveryRouteIsDecided fails for a route that nobody has thought about.
func TestEveryRouteIsDecided(t *testing.T) {
	decided := api.Decisions()
	table := strings.Builder{}
	table.WriteString("| call | needs |\n| --- | --- |\n")
	tried := requests("a", leaseID)
	patterns := newService(t, nil).handler.Patterns()
	for i, pattern := range patterns {
		patterns[i] = strings.Replace(pattern, "HEAD ", "GET ", 1)
	}
	slices.SortFunc(patterns, func(a, b string) int { return cmp.Or(cmp.Compare(pathOf(a), pathOf(b)), cmp.Compare(a, b)) })
	for _, pattern := range slices.Compact(patterns) {
		needs, ok := decided[pattern]
		if !ok {
			t.Errorf("%s has no line in decisions (authorize.go): whoever calls it is refused", pattern)
			continue
		}
		fmt.Fprintf(&table, "| `%s` | %s |\n", pattern, needs)
		if tried[pattern] == nil {
			t.Errorf("%s is not among the requests of this test", pattern)
		}
	}
	for pattern := range decided {
		if !slices.Contains(newService(t, nil).handler.Patterns(), pattern) {
			t.Errorf("%s is decided and not routed", pattern)
		}
	}
	wantsCallsTable(t, table.String())
}

// TestStrangersAreRefused calls everything without credentials, and with wrong
// ones: the fake fails the test if anything behind is called.
func TestStrangersAreRefused(t *testing.T) {
	open := []string{"GET /", "GET /console/", "GET /console", "GET /console/{file}", "GET /healthz", "GET /openapi.yaml", "GET /problems/{type}"}
	s := newService(t, &fake{status: func() lockcore.ClusterStatus {
		return lockcore.ClusterStatus{Ready: true, Quorum: 1, Voting: 1, Reason: "why", Nodes: []lockcore.NodeStatus{{Name: "inner-host:6379", State: lockcore.NodeVoting}}}
	}}, withConsole, withAccess(t, line("worker", "admin=*")))
	bad := map[string][]string{
		"none":         nil,
		"unknown":      {"Authorization: Bearer secret-of-somebody"},
		"a hash":       {fmt.Sprintf("Authorization: Bearer %x", sha256.Sum256([]byte("secret-of-worker")))},
		"empty":        {"Authorization: Bearer "},
		"other scheme": {"Authorization: Basic c2VjcmV0LW9mLXdvcmtlcjo="},
		"two":          {bearer("worker"), bearer("worker")},
		"like a JWT":   {"Authorization: Bearer a.b.c"},
		"long":         {"Authorization: Bearer " + strings.Repeat("x", 4000)},
	}
	for pattern, r := range requests("a", leaseID) {
		for how, header := range bad {
			a := s.send(r, header...)
			switch {
			case slices.Contains(open, pattern):
				a.wants(http.StatusOK)
			case pattern == "GET /readyz" && how == "none":
				if body := a.wants(http.StatusOK).body; strings.Contains(body, "inner-host") || strings.Contains(body, "why") {
					t.Errorf("a stranger is told the nodes: %s", body)
				}
			default:
				a.wants(http.StatusUnauthorized).problem("unauthorized")
				want(t, "challenge to "+how, strings.Contains(a.header.Get("WWW-Authenticate"), "invalid_token"), how != "none")
			}
		}
	}
	s.call("GET", "/locks/a", "", "authorization: bearer  secret-of-somebody").wants(http.StatusUnauthorized)
	if body := s.call("GET", "/readyz", "", bearer("worker")).wants(http.StatusOK).body; !strings.Contains(body, "inner-host") {
		t.Errorf("who is known is not told the nodes: %s", body)
	}
}

// TestRights holds every right against every route, inside and outside of its prefix.
func TestRights(t *testing.T) {
	s := newRealService(t, withAccess(t, line("boss", "admin=*"),
		line("none", "none=in/"), line("read", "read=in/"), line("acquire", "acquire=in/"), line("admin", "admin=in/")))
	s.named = "the-same"
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"in/x"}`, bearer("boss")).wants(http.StatusCreated))
	outside := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"out/x"}`, bearer("boss")).wants(http.StatusCreated))
	least := map[string]string{ // the least right that does not get 403
		"POST /locks": "acquire", "POST /cancel": "acquire", "GET /locks/*": "read", "POST /breaks": "admin", "GET /guarded/*": "read", "PUT /guarded/*": "acquire", "DELETE /guarded/*": "acquire",
		"POST /guarded/*": "acquire", "GET /history": "read",
	}
	order := []string{"none", "read", "acquire", "admin"}
	for pattern, right := range least {
		for have, name := range order {
			allowed := have >= slices.Index(order, right)
			inside := s.send(requests("in/x", lease.LeaseID)[pattern], bearer(name))
			if (inside.status != http.StatusForbidden) != allowed {
				t.Errorf("%s with %s inside the prefix: %d, want allowed %t", pattern, name, inside.status, allowed)
			}
			if !allowed {
				inside.problem("forbidden")
			}
			s.send(requests("out/x", outside.LeaseID)[pattern], bearer(name)).wants(http.StatusForbidden).problem("forbidden")
		}
	}
	s.call("HEAD", "/locks/out/x", "", bearer("read")).wants(http.StatusForbidden)

	// A free resource is refused in the same words as a held one.
	held, free := s.call("GET", "/locks/out/x", "", bearer("admin")).body, s.call("GET", "/locks/out/y", "", bearer("admin")).body
	want(t, "refusals", strings.ReplaceAll(held, "out/x", "out/y"), free)
}

func TestSeveralResourcesNeedARightEach(t *testing.T) {
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		return lockcore.Lease{ID: leaseID, Parts: []lockcore.LeasePart{{Resource: req.Resources[0], Token: 1}, {Resource: req.Resources[1], Token: 1}}}, nil
	}}, withAccess(t, line("w", "acquire=in/ read=*")))
	s.call("POST", "/locks", `{"resources":["in/a","in/b"]}`, bearer("w")).wants(http.StatusCreated)
	p := s.call("POST", "/locks", `{"resources":["in/a","out/b"]}`, bearer("w")).wants(http.StatusForbidden).problem("forbidden")
	want(t, "resource", p.Resource, "out/b")
}

func TestSlotsNeedARightEach(t *testing.T) {
	s := newService(t, &fake{acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) {
		return lockcore.Lease{ID: leaseID, Resource: "jobs#slot1", Token: 1}, nil
	}}, withAccess(t, line("w", "none=jobs#slot2 acquire=jobs")))
	s.call("POST", "/locks", `{"resource":"jobs","slots":1}`, bearer("w")).wants(http.StatusCreated)
	p := s.call("POST", "/locks", `{"resource":"jobs","slots":2}`, bearer("w")).wants(http.StatusForbidden).problem("forbidden")
	want(t, "resource", p.Resource, "jobs#slot2")
}

func TestListsShowWhatMayBeRead(t *testing.T) {
	s := newRealService(t, withAccess(t, line("boss", "acquire=*"), line("w", "read=in/ none=in/secret/")))
	for _, resource := range []string{"in/a", "in/secret/b", "out/c"} {
		s.call("POST", "/locks", `{"resource":"`+resource+`"}`, bearer("boss")).wants(http.StatusCreated)
	}
	for name, wanted := range map[string]string{"boss": "in/a in/secret/b out/c", "w": "in/a"} {
		var seen []string
		for _, lock := range decode[wire.LockPage](s.call("GET", "/locks", "", bearer(name)).wants(http.StatusOK)).Locks {
			seen = append(seen, lock.Resource)
		}
		slices.Sort(seen)
		want(t, "seen by "+name, strings.Join(seen, " "), wanted)
	}
}

// TestEventsTellWhatMayBeRead: by the rules as they are when something happens,
// not as they were when the stream began.
func TestEventsTellWhatMayBeRead(t *testing.T) {
	hub, option := withEvents(t)
	path := filepath.Join(t.TempDir(), "access")
	write := func(rules string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(line("w", rules)+"end\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("read=in/ none=in/secret/")
	keeper, err := access.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, &fake{}, option, func(o *api.Options) { o.Access = keeper })
	l := listen(t, s, "/events", bearer("w"))
	for i, resource := range []string{"out/a", "in/secret/b", "in/c"} {
		publish(hub, resource, int64(i+1))
	}
	want(t, "told", l.next(wire.EventGranted).Resource, "in/c")
	write("read=out/")
	if err := keeper.Load(); err != nil {
		t.Fatal(err)
	}
	publish(hub, "in/d", 10)
	publish(hub, "out/e", 11)
	want(t, "told", l.next(wire.EventGranted).Resource, "out/e")
}

// TestALeaseIsItsOwners: to anybody else its id is, word for word, one of a
// lease that has ended.
func TestALeaseIsItsOwners(t *testing.T) {
	s := newRealService(t, withAccess(t, line("a", "acquire=*"), line("b", "admin=*"), line("c", "acquire=other/")))
	s.named = "the-same"
	for _, body := range []string{`{"resource":"r","ttl_ms":60000}`, `{"resources":["x","y"],"ttl_ms":60000}`} {
		ended := decode[wire.Lease](s.call("POST", "/locks", body, bearer("a")).wants(http.StatusCreated))
		s.call("DELETE", "/leases/current", "", bearer("a"), "Fencelock-Lease: "+ended.LeaseID).wants(http.StatusNoContent)
		lease := decode[wire.Lease](s.call("POST", "/locks", body, bearer("a")).wants(http.StatusCreated))
		for pattern := range requests("r", "") {
			if !strings.Contains(pattern, "/leases/") {
				continue
			}
			was := s.send(requests("r", ended.LeaseID)[pattern], bearer("a")).wants(http.StatusNotFound)
			for _, other := range []string{"b", "c"} {
				got := s.send(requests("r", lease.LeaseID)[pattern], bearer(other)).wants(http.StatusNotFound)
				want(t, pattern+" by "+other, got.body, was.body)
			}
		}
		s.call("GET", "/leases/current", "", bearer("a"), "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusOK)
		extended := decode[wire.Lease](s.call("POST", "/leases/current/extend", "", bearer("a"), "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusOK))
		want(t, "lease id", extended.LeaseID, lease.LeaseID)
		s.call("DELETE", "/leases/current", "", bearer("a"), "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusNoContent)
	}
	s.call("GET", "/leases/current", "", bearer("a"), "Fencelock-Lease: nonsense").wants(http.StatusNotFound).problem("lease-not-held")
}

// TestReleaseAsksForTheRightToAcquire: whose right was taken can neither extend nor
// end the lease, which ends with its time.
func TestReleaseAsksForTheRightToAcquire(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access")
	write := func(rules string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(line("w", rules)+"end\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("acquire=r")
	keeper, err := access.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newRealService(t, func(o *api.Options) { o.Access = keeper })
	lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r","ttl_ms":60000}`, bearer("w")).wants(http.StatusCreated))
	write("read=*")
	if err := keeper.Load(); err != nil {
		t.Fatal(err)
	}
	for _, call := range [][]string{{"DELETE", "/leases/current", ""}, {"POST", "/leases/current/extend", ""}, {"GET", "/leases/current", ""}} {
		s.send(call, bearer("w"), "Fencelock-Lease: "+lease.LeaseID).wants(http.StatusNotFound).problem("lease-not-held")
	}
	if !decode[wire.Lock](s.call("GET", "/locks/r", "", bearer("w")).wants(http.StatusOK)).Held {
		t.Error("the lease was ended")
	}
}

func TestAKeyIsItsCallers(t *testing.T) {
	s := newRealService(t, withAccess(t, line("a", "acquire=*"), line("b", "acquire=*")))
	const key = "Idempotency-Key: the-same"
	first := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r"}`, key, bearer("a")).wants(http.StatusCreated))
	again := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"r"}`, key, bearer("a")).wants(http.StatusOK))
	want(t, "lease", again.LeaseID, first.LeaseID)
	s.call("POST", "/locks", `{"resource":"r"}`, key, bearer("b")).wants(http.StatusConflict).problem("lock-held")
}

// TestAdministrativeActsAreAudited: done or refused, each leaves one line, with
// who tried it and without secrets.
func TestAdministrativeActsAreAudited(t *testing.T) {
	var audit logBuffer
	s := newRealService(t, withAccess(t, line("boss", "admin=*"), line("w", "acquire=*")), func(o *api.Options) {
		o.Audit = slog.New(slog.NewJSONHandler(&audit, nil))
	})
	s.call("POST", "/locks", `{"resource":"r"}`, bearer("w")).wants(http.StatusCreated)
	for _, header := range [][]string{nil, {"Authorization: Bearer secret-of-nobody"}, {bearer("w")}, {bearer("boss")}, {bearer("boss")}} {
		s.breaks("r", append(header, "X-Request-Id: q")...)
	}
	var got []string
	for entry := range strings.Lines(audit.String()) {
		var line map[string]string
		if err := json.Unmarshal([]byte(entry), &line); err != nil {
			t.Fatal(err)
		}
		if line["msg"] != "audit" || line["remote"] == "" || !strings.Contains(entry, `"request_id":"q"`) {
			t.Errorf("line %s", entry)
		}
		got = append(got, line["identity"]+" "+line["act"]+" "+line["resource"]+" "+line["result"])
	}
	want(t, "audit log", strings.Join(got, "\n"), strings.Join([]string{
		"- break  unauthorized", "- break  unauthorized", "w break r forbidden", "boss break r done", "boss break r lock-not-held",
	}, "\n"))
	if strings.Contains(audit.String(), "secret-of") {
		t.Error("a secret is in the audit log")
	}
}

func TestBreaksAreAuditedWithoutAccessControl(t *testing.T) {
	s := newService(t, &fake{brk: func(string, fencing.Token) error { return nil }})
	s.breaks("r").wants(http.StatusNoContent)
	if !regexp.MustCompile(`"msg":"audit","identity":"-","act":"break","resource":"r","result":"done"`).MatchString(s.log.String()) {
		t.Errorf("no line: %s", s.log.String())
	}
}

// issuerAway is a Verifier whose issuer does not answer.
type issuerAway struct{}

func (issuerAway) Verify(context.Context, string) (string, time.Time, error) {
	return "", time.Time{}, access.ErrUnavailable
}

func TestAnIssuerThatIsAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access")
	if err := os.WriteFile(path, []byte(line("w", "read=*")+"end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	keeper, err := access.Open(path, issuerAway{})
	if err != nil {
		t.Fatal(err)
	}
	s := newService(t, &fake{inspect: func(string) (lockcore.LockState, error) { return lockcore.LockState{Resource: "r"}, nil }}, func(o *api.Options) { o.Access = keeper })
	a := s.call("GET", "/locks/r", "", "Authorization: Bearer a.b.c").wants(http.StatusServiceUnavailable)
	a.problem("identity-unavailable")
	want(t, "Retry-After", a.header.Get("Retry-After"), "1")
	s.call("GET", "/readyz", "", "Authorization: Bearer a.b.c").wants(http.StatusServiceUnavailable).problem("identity-unavailable")
	s.call("GET", "/locks/r", "", bearer("w")).wants(http.StatusOK)
}
