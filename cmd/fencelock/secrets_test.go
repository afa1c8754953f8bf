package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
)

// watched is a client that keeps all responses that it got, with their headers.
type watched struct {
	*process
	secret string // its bearer token

	mu       sync.Mutex
	answered strings.Builder
}

func (w *watched) call(method, path, body string, header ...string) (text string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if w.secret != "" {
		req.Header.Set("Authorization", "Bearer "+w.secret)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	w.keep(fmt.Sprintf("%s %s: %d %v %s\n", method, path, resp.StatusCode, resp.Header, all))
	return string(all)
}

func (w *watched) keep(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answered.WriteString(text)
}

func (w *watched) all() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.answered.String()
}

// follow reads GET /events until the test ends.
func (w *watched) follow() {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, w.url+"/events?recent=1000", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.secret)
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		w.t.Fatalf("events: %+v, %v", resp, err)
	}
	var reading sync.WaitGroup
	w.t.Cleanup(reading.Wait)
	reading.Go(func() {
		defer func() { _ = resp.Body.Close() }()
		for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
			w.keep(lines.Text() + "\n")
		}
	})
}

// TestNothingSecretIsTold does everything that a service can do, with known secrets, and looks for these secrets in
// all output: the log at every level, metrics, profiles, events, standard output, and the responses to every caller
// except the secrets' owner.
func TestNothingSecretIsTold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, keys := filepath.Join(dir, "access"), filepath.Join(dir, "keys")
	key := strings.Repeat("5eC2e7", 11)[:64]
	writeFile(t, keys, "k1 "+key+"\n")
	owner := &watched{secret: tokenFor(t, file, "owner", "--acquire", "*", "--requests", "1000", "--held", "100")}
	other := &watched{secret: tokenFor(t, file, "other", "--admin", "*")}
	stranger := &watched{}
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_PROOF_KEY_FILE="+keys, "FENCELOCK_PROOF_REQUIRED=true", "FENCELOCK_LOG_LEVEL=debug")
	for _, w := range []*watched{owner, other, stranger} {
		w.process = p
	}
	other.follow()
	secrets := secretForms(owner.secret, other.secret, key)
	var granted []wire.Lease
	for i := range 2 { // of one resource, and of two
		leases := liveALife(t, owner, i)
		granted = append(granted, leases...)
		for _, lease := range leases {
			secrets = append(secrets, lease.LeaseID, "idempotency-of-mine")
			for _, part := range append(lease.Resources, wire.LeasePart{FencingProof: lease.FencingProof}) {
				if part.FencingProof != "" {
					secrets = append(secrets, part.FencingProof)
				}
			}
			pry(other, lease)
			pry(stranger, lease)
		}
	}
	wrong := "flk_wrong-" + strings.Repeat("w", 33)
	for _, header := range []string{"Bearer " + wrong, "Basic " + base64.StdEncoding.EncodeToString([]byte("a:"+wrong)), "Bearer eyJ" + wrong + ".eyJ." + wrong} {
		stranger.call("GET", "/locks", "", "Authorization: "+header)
	}
	secrets = append(secrets, wrong)
	writeFile(t, file, "broken token="+wrong+"\n")
	writeFile(t, keys, "k1 "+wrong+"\n")
	p.until("both broken files are told", func() bool {
		return strings.Count(p.Logs(), "a changed file cannot be used") == 2
	})
	p.until("the breaks are told", func() bool { return strings.Contains(other.all(), "event: broken") })

	var admin strings.Builder
	for _, path := range []string{"/metrics", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2"} {
		resp, err := http.Get("http://" + p.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(&admin, resp.Body)
		_ = resp.Body.Close()
	}
	own := clusterSecret(t, p)
	secrets = append(secrets, secretForms(own)...)
	told := map[string]string{
		"the log": p.Logs(), "standard output": p.Stdout(), "the admin listener": admin.String(),
		"what another is told": pathsOut(other.all()), "what a stranger is told": pathsOut(stranger.all()),
	}
	for where, text := range told {
		if len(text) < 100 && where != "standard output" {
			t.Errorf("%s is nearly empty: %q", where, text)
		}
		noSecrets(t, where, text, secrets)
	}
	noSecrets(t, "what the owner is told", owner.all(), secretForms(owner.secret, other.secret, key, own))
	for _, wanted := range []string{"fencelock_wait_seconds", `"identity":"other","act":"break"`} {
		if !strings.Contains(told["the admin listener"]+told["the log"], wanted) {
			t.Errorf("%s is nowhere: the test looks at the wrong places", wanted)
		}
	}
	for _, lease := range granted {
		if !strings.Contains(owner.all(), lease.LeaseID) {
			t.Error("the owner was not told its own lease: the test looks at the wrong places")
		}
	}
}

// clusterSecret is the secret that the embedded file keeps, in hexadecimal digits.
func clusterSecret(t *testing.T, p *process) string {
	t.Helper()
	file, err := os.ReadFile(filepath.Join(p.Dir(), "fencelock.db"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`[0-9]{10,}:([0-9a-f]{64})`).FindSubmatch(file)
	if found == nil {
		t.Fatal("the file keeps no secret: the test looks at the wrong place")
	}
	return string(found[1])
}

// secretForms returns bearer tokens and a key as they are, as hashes, and in the encodings in which they might leak.
func secretForms(tokens ...string) (forms []string) {
	for _, token := range tokens {
		sum := sha256.Sum256([]byte(token))
		forms = append(forms, token, hex.EncodeToString(sum[:]), base64.StdEncoding.EncodeToString([]byte(token)))
		if raw, err := hex.DecodeString(token); err == nil {
			forms = append(forms, strings.ToLower(token), base64.StdEncoding.EncodeToString(raw), base64.RawURLEncoding.EncodeToString(raw))
		}
	}
	return forms
}

// liveALife does what a holder does, right and wrong.
func liveALife(t *testing.T, w *watched, round int) (leases []wire.Lease) {
	t.Helper()
	what := []string{`"resource":"r"`, `"resources":["a","b"]`}[round]
	for i := range 2 {
		var lease wire.Lease
		w.wants(w.ask(&lease, "POST", "/locks", `{`+what+`,"holder":"h","metadata":{"m":1},"ttl_ms":60000}`, bearer(w.secret), fmt.Sprintf("Idempotency-Key: idempotency-of-mine-%d-%d", round, i)), http.StatusCreated)
		w.keep(fmt.Sprintf("%+v fencing_proof", lease))
		leases = append(leases, lease)
		const path = "/leases/current"
		id := wire.HeaderLease + ": " + lease.LeaseID
		w.call("POST", "/locks", `{`+what+`}`, fmt.Sprintf("Idempotency-Key: idempotency-of-mine-%d-%d", round, i))
		w.call("POST", "/locks", `{`+what+`,"wait_ms":30}`)
		w.call("POST", "/locks", `{`+what+`,"wait_ms":1,"nonsense":"`+lease.LeaseID+`"}`)
		w.call("GET", path, "", id)
		w.call("POST", path+"/extend", `{"ttl_ms":60000}`, id)
		w.call("POST", path+"/extend", `{"ttl_ms":1}`, id)
		w.call("PATCH", path, "", id)
		w.call("GET", "/leases/"+lease.LeaseID, "") // an address that does not exist
		w.call("GET", path+"?lease_id="+lease.LeaseID, "", id)
		proof := lease.FencingProof
		token := fmt.Sprintf("Fencing-Token: %d", lease.FencingToken)
		w.call("PUT", "/guarded/r", `1`, token, "Fencing-Proof: "+proof)
		w.call("POST", "/guarded/r", "", token, "Fencing-Proof: "+proof)
		w.call("PUT", "/guarded/other", `1`, token, "Fencing-Proof: "+proof)
		w.call("PUT", "/guarded/r", `1`, "Fencing-Token: 9007199254740991", "Fencing-Proof: "+proof)
		w.call("PUT", "/guarded/r", `1`, "Fencing-Token: 1", "Fencing-Proof: "+proof+"x")
		if i == 0 {
			w.call("DELETE", path, "", id)
			w.call("DELETE", path, "", id)
			w.call("POST", path+"/extend", "", id)
		}
	}
	return leases
}

// pry sends every request that another caller may send about a lease that it has learned of, and breaks its locks.
func pry(w *watched, lease wire.Lease) {
	const path = "/leases/current"
	id := wire.HeaderLease + ": " + lease.LeaseID
	w.call("GET", path, "", id)
	w.call("POST", path+"/extend", "", id)
	w.call("DELETE", path, "", id)
	for _, resource := range []string{"r", "a", "b"} {
		w.call("POST", "/locks", `{"resource":"`+resource+`"}`, "Idempotency-Key: idempotency-of-mine-0-0")
		w.call("GET", "/locks/"+resource, "")
		w.call("GET", "/guarded/"+resource, "")
		w.call("GET", "/history?resource="+resource, "")
	}
	for _, page := range []string{"/locks", "/readyz", "/console", "/nothing/here", "/openapi.yaml"} {
		w.call("GET", page, "")
	}
	if w.secret != "" {
		for _, resource := range []string{"r", "a", "b"} {
			w.call("POST", "/breaks", breakAny(resource))
		}
	}
}

// pathsOut removes the beginnings of the lines, which are the requests of the test.
func pathsOut(text string) string {
	var kept strings.Builder
	for line := range strings.Lines(text) {
		if _, answer, found := strings.Cut(line, ": "); found {
			kept.WriteString(answer)
		}
	}
	return kept.String()
}
