package main

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// revokedWithin is how long an open request or stream may outlive its caller's rights. A busy machine may read the
// changed file late.
const revokedWithin = 2*time.Second + 3*time.Second

// openRequests are a stream of events and the waiting acquires of one caller.
type openRequests struct {
	p       *process
	stream  chan time.Time // when it ended
	waiters chan refusedWait
	count   int
}

type refusedWait struct {
	status  int
	problem wire.Problem
	at      time.Time
}

// open reads events, and lets a request wait for each resource, all on the connections of one client.
func (p *process) open(resources []string, header ...string) *openRequests {
	p.t.Helper()
	o := &openRequests{p: p, stream: make(chan time.Time, 1), waiters: make(chan refusedWait, len(resources)), count: len(resources)}
	ask := func(method, path, body string) *http.Response {
		req, err := http.NewRequestWithContext(p.t.Context(), method, p.url+path, strings.NewReader(body))
		if err != nil {
			p.t.Error(err)
			return nil
		}
		req.Header.Set("Content-Type", "application/json")
		for _, h := range header {
			name, value, _ := strings.Cut(h, ": ")
			req.Header.Set(name, value)
		}
		resp, err := p.client.Do(req)
		if err != nil {
			p.t.Error(err)
			return nil
		}
		return resp
	}
	stream := ask("GET", "/events", "")
	p.wants(stream, http.StatusOK)
	go func() {
		_, _ = io.Copy(io.Discard, stream.Body)
		_ = stream.Body.Close()
		o.stream <- time.Now()
	}()
	for _, resource := range resources {
		go func() {
			var refused refusedWait
			if resp := ask("POST", "/locks", `{"resource":"`+resource+`","wait_ms":300000}`); resp != nil {
				defer func() { _ = resp.Body.Close() }()
				refused.status = resp.StatusCode
				_ = json.NewDecoder(resp.Body).Decode(&refused.problem)
			}
			refused.at = time.Now()
			o.waiters <- refused
		}()
	}
	return o
}

// end checks that the requests and, after a 401, the stream end soon after the time, with this status and problem.
func (o *openRequests) end(after time.Time, status int, problem string) {
	o.p.t.Helper()
	late := time.After(time.Minute)
	for range o.count {
		select {
		case w := <-o.waiters:
			if w.status != status || w.problem.Type != wire.ProblemPrefix+problem || w.at.Sub(after) > revokedWithin || w.at.Before(after) {
				o.p.t.Errorf("a waiting request was answered %d %s after %s", w.status, w.problem.Type, w.at.Sub(after))
			}
		case <-late:
			o.p.t.Fatal("a request waits on")
		}
	}
	if status != http.StatusUnauthorized {
		return // its stream is filtered, and continues
	}
	select {
	case at := <-o.stream:
		if took := at.Sub(after); took > revokedWithin || took < 0 {
			o.p.t.Errorf("a stream ended after %s", took)
		}
	case <-late:
		o.p.t.Fatal("a stream goes on")
	}
}

// TestRevocationReachesWhatIsOpen takes the rights of callers away, each in a different way, while they read events
// and wait for a lock.
func TestRevocationReachesWhatIsOpen(t *testing.T) {
	t.Parallel()
	nodes := map[string][]string{"embedded": nil}
	redis := testenv.StartRedisN(t, 3)
	nodes["Redis"] = []string{"FENCELOCK_REDIS_ADDRS=" + redis[0].Addr() + "," + redis[1].Addr() + "," + redis[2].Addr(), "FENCELOCK_BOOTSTRAP=new", "FENCELOCK_NODE_DOWN_AFTER=1s"}
	for name, env := range nodes {
		t.Run(name, func(t *testing.T) { testRevocation(t, env) })
	}
}

func testRevocation(t *testing.T, env []string) {
	t.Helper()
	signer, issuer := newTestIssuer(t)
	signed := func(subject string, lives time.Duration) string {
		text, err := jwt.Signed(signer).Claims(map[string]any{
			"iss": issuer, "aud": "fencelock", "sub": subject, "exp": time.Now().Add(lives).Unix(),
		}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	file := filepath.Join(t.TempDir(), "access.txt")
	boss := tokenFor(t, file, "boss", "--admin", "*")
	token := tokenFor(t, file, "token", "--acquire", "*")
	right := tokenFor(t, file, "right", "--acquire", "*")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("\nend\n"), []byte("\nclaim jwt=claim acquire=*\nexpires jwt=expires acquire=*\nend\n"), 1)
	writeFile(t, file, string(text))
	p := start(t, append(env, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_OIDC_ISSUER="+issuer, "FENCELOCK_OIDC_AUDIENCE=fencelock")...)
	resources := []string{"a", "b"}
	var leases []wire.Lease
	for _, resource := range resources {
		var lease wire.Lease
		p.wants(p.ask(&lease, "POST", "/locks", `{"resource":"`+resource+`","ttl_ms":60000}`, bearer(boss)), http.StatusCreated)
		leases = append(leases, lease)
	}
	waiting := func(n int) {
		p.t.Helper()
		for _, resource := range resources {
			p.until("the queue's length", func() bool {
				var state wire.Lock
				p.ask(&state, "GET", "/locks/"+resource, "", bearer(boss))
				return state.Waiters == n
			})
		}
	}
	const lives = 6 * time.Second
	expires := signed("expires", lives)
	byToken, byRight := p.open(resources, bearer(token)), p.open(resources, bearer(right))
	byClaim, byExpiry := p.open(resources, bearer(signed("claim", time.Hour))), p.open(resources, bearer(expires))
	stays := p.open(nil, bearer(boss))
	ends := time.Now().Add(lives)
	waiting(4)

	changed := withoutLines(string(text), "token ", "claim ")
	before, rest, _ := strings.Cut(changed, "right ")
	changed = before + "right " + strings.Replace(rest, " acquire=*", "", 1)
	at := time.Now()
	writeFile(t, file, changed)
	byToken.end(at, http.StatusUnauthorized, "unauthorized")
	byClaim.end(at, http.StatusUnauthorized, "unauthorized")
	byRight.end(at, http.StatusForbidden, "forbidden")
	byExpiry.end(ends.Add(-2*time.Second), http.StatusUnauthorized, "unauthorized") // exp is in whole seconds
	waiting(0)
	for i, resource := range resources {
		p.wants(p.ask(nil, "DELETE", "/leases/current", "", bearer(boss), "Fencelock-Lease: "+leases[i].LeaseID), http.StatusNoContent)
		p.wants(p.ask(nil, "POST", "/locks", `{"resource":"`+resource+`"}`, bearer(boss)), http.StatusCreated)
	}
	select {
	case <-stays.stream:
		t.Error("a stream of somebody else ended, too")
	default:
	}
}

// withoutLines removes the lines that begin with a text.
func withoutLines(text string, starts ...string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if !slices.ContainsFunc(starts, func(start string) bool { return strings.HasPrefix(line, start) }) {
			kept.WriteString(line)
		}
	}
	return kept.String()
}

// newTestIssuer runs an OpenID Connect issuer on this machine.
func newTestIssuer(t *testing.T) (signer jose.Signer, address string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: key}, (&jose.SignerOptions{}).WithHeader("kid", "1"))
	if err != nil {
		t.Fatal(err)
	}
	var issuer *httptest.Server
	issuer = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body any = map[string]any{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/keys"}
		if r.URL.Path == "/keys" {
			body = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "1", Algorithm: "RS256", Use: "sig"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(body); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(issuer.Close)
	return signer, issuer.URL
}

// TestRevocationOfACertificate ends many requests that wait on one connection, and its stream: when the rule for
// their certificate is removed, and when the certificate expires.
func TestRevocationOfACertificate(t *testing.T) {
	t.Parallel()
	p, own, file := startWithCertificates(t)
	boss := p.as(own.client(&x509.Certificate{DNSNames: []string{"worker.example.com"}}))
	writeFile(t, file, "worker cert=worker.example.com admin=*\nold cert=old acquire=*\nshort cert=short acquire=*\nend\n")
	old := p.as(own.client(&x509.Certificate{DNSNames: []string{"old"}}))
	p.until("the names are known", func() bool { return old.ask(nil, "GET", "/locks/a", "").StatusCode != http.StatusUnauthorized })
	ends := time.Now().Add(8 * time.Second).Truncate(time.Second)
	short := p.as(own.client(&x509.Certificate{DNSNames: []string{"short"}, NotAfter: ends}))
	boss.acquire(`{"resource":"a","ttl_ms":60000}`)
	boss.acquire(`{"resource":"b","ttl_ms":60000}`)
	resources := []string{"a", "a", "a", "b", "b", "b"}
	byRule, byEnd := old.open(resources), short.open(resources)
	for _, resource := range []string{"a", "b"} {
		p.until("all wait", func() bool {
			var state wire.Lock
			boss.ask(&state, "GET", "/locks/"+resource, "")
			return state.Waiters == 6
		})
	}
	at := time.Now()
	writeFile(t, file, "worker cert=worker.example.com admin=*\nshort cert=short acquire=*\nend\n")
	byRule.end(at, http.StatusUnauthorized, "unauthorized")
	byEnd.end(ends, http.StatusUnauthorized, "unauthorized")
}
