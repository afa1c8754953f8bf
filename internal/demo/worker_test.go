package demo

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// scripted responds with one function of its script to each request.
func scripted(t *testing.T, script ...func(w http.ResponseWriter, r *http.Request)) *httptest.Server {
	t.Helper()
	next := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if next >= len(script) {
			t.Errorf("more questions than the script has: %s %s", r.Method, r.URL.Path)
			w.WriteHeader(http.StatusTeapot)
			return
		}
		next++
		script[next-1](w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		if next != len(script) {
			t.Errorf("%d of %d questions were asked", next, len(script))
		}
	})
	return server
}

// answer checks the request's method and path, and responds.
func answer(t *testing.T, question string, status int, body any) func(http.ResponseWriter, *http.Request) {
	t.Helper()
	return func(w http.ResponseWriter, r *http.Request) {
		got := r.Method + " " + r.URL.Path
		if token := r.Header.Get(wire.HeaderFencingToken); token != "" {
			got += " " + token
		}
		if lease := r.Header.Get(wire.HeaderLease); lease != "" {
			got += " " + lease
		}
		if got != question {
			t.Errorf("question %q, want %q", got, question)
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
}

// work runs a worker and returns the kinds of its events.
func work(t *testing.T, cfg WorkerConfig) (kinds []Kind, err error) {
	t.Helper()
	input, err := json.Marshal(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = RunWorker(t.Context(), bytes.NewReader(input), &out)
	for dec := json.NewDecoder(&out); dec.More(); {
		var e Event
		if err := dec.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Who != cfg.Who || time.Since(e.Time) > time.Minute {
			t.Errorf("event %+v", e)
		}
		kinds = append(kinds, e.Kind)
	}
	return kinds, err
}

func TestWorkerBeginsAgainAfterARefusal(t *testing.T) {
	lease := func(token int64) wire.Lease {
		return wire.Lease{LeaseID: "x", FencingToken: token, TTLMS: 60_000, ValidityMS: 5000}
	}
	stale := wire.Problem{Type: "/problems/stale-token", StaleDetails: &wire.StaleDetails{Presented: 34, HighestToken: 35}}
	server := scripted(t,
		answer(t, "POST /locks", http.StatusCreated, lease(34)),
		answer(t, "POST /guarded/a/b 34", http.StatusOK, wire.Record{Value: json.RawMessage(`100`)}),
		answer(t, "PUT /guarded/a/b 34", http.StatusPreconditionFailed, stale),
		answer(t, "POST /locks", http.StatusCreated, lease(36)),
		answer(t, "POST /guarded/a/b 36", http.StatusOK, wire.Record{Value: json.RawMessage(`120`)}),
		answer(t, "PUT /guarded/a/b 36", http.StatusOK, wire.Record{}),
		answer(t, "DELETE /leases/current x", http.StatusNoContent, nil),
	)
	kinds, err := work(t, WorkerConfig{
		Who: WorkerA, Server: server.URL, Resource: "a/b", TTL: time.Second,
		Account: account(server.URL + "/guarded/a/b"),
	})
	want := []Kind{Acquired, Read, Checked, Refused, Acquired, Read, Checked, Wrote, Released}
	if err != nil || !slices.Equal(kinds, want) {
		t.Errorf("%v, %v, want %v", kinds, err, want)
	}
}

// TestWorkerWaitsInTheQueue also makes the worker lose its lease at the end.
func TestWorkerWaitsInTheQueue(t *testing.T) {
	held := wire.Problem{Type: "/problems/lock-held", HeldDetails: &wire.HeldDetails{Holder: "x", RemainingMS: 900}}
	lease := wire.Lease{LeaseID: "y", FencingToken: 7, TTLMS: 60_000, ValidityMS: 5000}
	server := scripted(t,
		answer(t, "POST /locks", http.StatusConflict, held),
		answer(t, "POST /locks", http.StatusCreated, lease),
		answer(t, "DELETE /leases/current y", http.StatusNotFound, wire.Problem{Type: "/problems/lease-not-held"}),
	)
	file := filepath.Join(t.TempDir(), "account.json")
	if err := account(file).write(t.Context(), 0, 100); err != nil {
		t.Fatal(err)
	}
	kinds, err := work(t, WorkerConfig{
		Who: WorkerB, Server: server.URL, Resource: "a", TTL: time.Second,
		Account: account(file),
	})
	if want := []Kind{Held, Acquired, Read, Checked, Wrote, TooLate}; err != nil || !slices.Equal(kinds, want) {
		t.Errorf("%v, %v, want %v", kinds, err, want)
	}
	if amount, err := account(file).read(t.Context(), 0); err != nil || amount != 120 {
		t.Errorf("balance %d, %v", amount, err)
	}
}

// TestWorkerIsPatient responds to the first try of each request with 503, and checks that the lease is
// still released.
func TestWorkerIsPatient(t *testing.T) {
	away := wire.Problem{Type: "/problems/no-quorum", QuorumDetails: &wire.QuorumDetails{}}
	lease := wire.Lease{LeaseID: "y", FencingToken: 7, TTLMS: 60_000, ValidityMS: 60_000}
	server := scripted(t,
		answer(t, "POST /locks", http.StatusServiceUnavailable, away),
		answer(t, "POST /locks", http.StatusCreated, lease),
		answer(t, "DELETE /leases/current y", http.StatusServiceUnavailable, away),
		answer(t, "DELETE /leases/current y", http.StatusNotFound, wire.Problem{Type: "/problems/lease-not-held"}),
	)
	file := filepath.Join(t.TempDir(), "account.json")
	if err := account(file).write(t.Context(), 0, 100); err != nil {
		t.Fatal(err)
	}
	kinds, err := work(t, WorkerConfig{Who: WorkerB, Server: server.URL, Resource: "a", Account: account(file)})
	if want := []Kind{Acquired, Read, Checked, Wrote, Released}; err != nil || !slices.Equal(kinds, want) {
		t.Errorf("%v, %v, want %v", kinds, err, want)
	}
}

func TestWorkerTellsWhatWentWrong(t *testing.T) {
	invalid := wire.Problem{Type: "/problems/invalid-request", Status: http.StatusBadRequest, Detail: "ttl_ms"}
	server := scripted(t, answer(t, "POST /locks", http.StatusBadRequest, invalid))
	_, err := work(t, WorkerConfig{Who: WorkerA, Server: server.URL, Resource: "a", Account: account("x")})
	if err == nil || !strings.Contains(err.Error(), "(400): ttl_ms") {
		t.Errorf("%v", err)
	}
	server = scripted(t,
		answer(t, "POST /locks", http.StatusCreated, wire.Lease{LeaseID: "z", FencingToken: 1, TTLMS: 60_000}),
		answer(t, "DELETE /leases/current z", http.StatusNoContent, nil),
		answer(t, "POST /locks", http.StatusBadRequest, invalid)) // asked again, with a wait
	file := filepath.Join(t.TempDir(), "account.json")
	if err := account(file).write(t.Context(), 0, 100); err != nil {
		t.Fatal(err)
	}
	kinds, err := work(t, WorkerConfig{Who: WorkerA, Server: server.URL, Resource: "a", Account: account(file)})
	if err == nil || slices.Contains(kinds, Wrote) {
		t.Errorf("wrote after its lease had ended: %v, %v", kinds, err)
	}
	if err := RunWorker(t.Context(), strings.NewReader("no JSON"), &bytes.Buffer{}); err == nil {
		t.Error("took no JSON for instructions")
	}
}

// A server that is too late for the worker's try without a wait is asked again, with the wait.
func TestWorkerWhoseTryIsNotAnswered(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked wire.AcquireRequest
		switch err := json.NewDecoder(r.Body).Decode(&asked); {
		case r.URL.Path != "/locks": // a cancel, or the release
			w.WriteHeader(http.StatusNoContent)
		case err != nil:
			t.Error(err)
		case asked.WaitMS == nil || *asked.WaitMS == 0:
			<-r.Context().Done()
		default:
			answer(t, "POST /locks", http.StatusCreated, wire.Lease{LeaseID: "y", FencingToken: 7, TTLMS: 60_000, ValidityMS: 5000})(w, r)
		}
	}))
	t.Cleanup(server.Close)
	file := filepath.Join(t.TempDir(), "account.json")
	if err := account(file).write(t.Context(), 0, 100); err != nil {
		t.Fatal(err)
	}
	kinds, err := work(t, WorkerConfig{Who: WorkerA, Server: server.URL, Resource: "a", TTL: time.Minute, Account: account(file)})
	if want := []Kind{Acquired, Read, Checked, Wrote, Released}; err != nil || !slices.Equal(kinds, want) {
		t.Errorf("%v, %v, want %v", kinds, err, want)
	}
}
