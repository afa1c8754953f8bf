package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/fencing"
)

// answers makes a client of a service that answers each request as f does, and keeps what was sent.
func answers(t *testing.T, f func(*http.Request) (int, string), more ...client.Option) (*client.Client, *[]*http.Request) {
	t.Helper()
	var sent []*http.Request
	transport := roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			body, _ := io.ReadAll(r.Body)
			r.Body = io.NopCloser(strings.NewReader(string(body)))
		}
		sent = append(sent, r)
		status, body := f(r)
		return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
	})
	opts := []client.Option{client.WithHTTPClient(&http.Client{Transport: transport}), client.WithPatience(0), client.WithBearerToken(" secret\n")}
	c, err := client.New([]string{"http://locks.test"}, append(opts, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c, &sent
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRecords(t *testing.T) {
	t.Parallel()
	c, sent := answers(t, func(r *http.Request) (int, string) {
		if strings.HasSuffix(r.URL.Path, "/none") {
			return 404, `{"type":"/problems/record-not-found","title":"No record","status":404}`
		}
		return 200, `{"resource":"a/1","highest_token":7,"value":{"paid":true},"version":2}`
	})
	claim := fencing.Claim{Resource: "a/1", Token: 7, Proof: "proof"}
	for i, call := range []func() (fencing.Record, error){
		func() (fencing.Record, error) { return c.ReadRecord(t.Context(), "a/1") },
		func() (fencing.Record, error) { return c.ClaimRecord(t.Context(), claim) },
		func() (fencing.Record, error) {
			return c.WriteRecord(t.Context(), claim, json.RawMessage(`{"paid":true}`))
		},
		func() (fencing.Record, error) { return c.DeleteRecord(t.Context(), claim) },
	} {
		record, err := call()
		if err != nil || record.Resource != "a/1" || record.Mark != 7 || string(record.Value) != `{"paid":true}` || record.Version != 2 {
			t.Errorf("call %d gives %+v, %v", i, record, err)
		}
	}
	want := []string{"GET /guarded/a%2F1 ", "POST /guarded/a%2F1 7", "PUT /guarded/a%2F1 7", "DELETE /guarded/a%2F1 7"}
	for i, r := range *sent {
		if got := r.Method + " " + r.URL.EscapedPath() + " " + r.Header.Get("Fencing-Token"); got != want[i] {
			t.Errorf("request %d is %s, want %s", i, got, want[i])
		}
		if got := r.Header.Get("Fencing-Proof"); (got == "proof") != (i > 0) || r.Header.Get("Authorization") != "Bearer secret" {
			t.Errorf("request %d has the headers %v", i, r.Header)
		}
	}
	if record, err := c.ReadRecord(t.Context(), "none"); err != nil || record.Version != 0 || record.Value != nil || record.Resource != "none" {
		t.Errorf("a record that was never written is %+v, %v", record, err)
	}
}

// A write is not sent again if it may have taken effect. The error of a stale token is also the error of a lost
// lease.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	status, body := 503, `{"type":"/problems/guard-unavailable","title":"Down","status":503}`
	c, sent := answers(t, func(*http.Request) (int, string) { return status, body })
	claim := fencing.Claim{Resource: "a", Token: 7}
	if _, err := c.WriteRecord(t.Context(), claim, json.RawMessage(`1`)); !errors.Is(err, client.ErrUnavailable) || len(*sent) != 1 {
		t.Errorf("%v after %d requests", err, len(*sent))
	}
	status, body = 412, `{"type":"/problems/stale-token","title":"Stale","status":412,"resource":"a","presented":7,"highest_token":9}`
	_, err := c.WriteRecord(t.Context(), claim, json.RawMessage(`1`))
	problem, _ := asType[*client.ProblemError](err)
	if !errors.Is(err, client.ErrLeaseLost) || !errors.Is(err, fencing.ErrStaleToken) || problem == nil || problem.HighestToken != 9 {
		t.Errorf("a stale token gives %v", err)
	}
	if !errors.Is(&fencing.StaleTokenError{}, client.ErrLeaseLost) {
		t.Error("a guard's refusal of a stale token is not ErrLeaseLost")
	}
	if _, err := c.WriteRecord(t.Context(), claim, json.RawMessage(`{`)); !errors.Is(err, client.ErrInvalid) {
		t.Errorf("a value that is not JSON gives %v", err)
	}
}

// A call that must not be sent again gets the client's whole time limit, or its caller's, however fast earlier
// responses were: if it were given up, it might have taken effect.
func TestAWriteIsWaitedFor(t *testing.T) {
	t.Parallel()
	var limits []time.Duration
	c, _ := answers(t, func(r *http.Request) (int, string) {
		until, _ := r.Context().Deadline()
		limits = append(limits, time.Until(until))
		return 200, `{"resource":"a"}`
	}, client.WithTimeout(time.Hour))
	claim := fencing.Claim{Resource: "a", Token: 7}
	for _, call := range []func() error{
		func() error { _, err := c.ReadRecord(t.Context(), "a"); return err },
		func() error { _, err := c.WriteRecord(t.Context(), claim, json.RawMessage(`1`)); return err },
		func() error { _, err := c.DeleteRecord(t.Context(), claim); return err },
	} {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	if _, err := c.WriteRecord(soon, claim, json.RawMessage(`2`)); err != nil {
		t.Fatal(err)
	}
	if limits[0] > time.Minute || limits[1] < 50*time.Minute || limits[2] < 50*time.Minute || limits[3] < 25*time.Minute {
		t.Errorf("a read, a write, a deletion and a write within 30 minutes may take %s", limits)
	}
}

func TestHistoryAndLocks(t *testing.T) {
	t.Parallel()
	c, _ := answers(t, func(r *http.Request) (int, string) {
		switch {
		case r.URL.Path == "/locks/a":
			return 200, `{"resource":"a","held":true,"holder":"me","fencing_token":7,"remaining_ms":1500,"ttl_ms":2000,"held_ms":500,"waiters":1,"queue":[{"holder":"b","waiting_ms":30}]}`
		case r.URL.RequestURI() == "/guarded?limit=1000&prefix=a%2F":
			return 200, `{"records":[{"resource":"a/1","highest_token":7,"version":2}],"next_cursor":"a/1"}`
		case r.URL.RequestURI() == "/guarded?cursor=a%2F1&limit=1000&prefix=a%2F":
			return 200, `{"records":[{"resource":"a/2","highest_token":9,"version":0}]}`
		case r.URL.Query().Get("cursor") == "":
			return 200, `{"resource":"a","attempts":[{"fencing_token":3,"highest_token":4,"kind":"write","accepted":false,"version":1,"at":"2026-03-01T12:00:00Z"}],"next_cursor":"more"}`
		}
		return 200, `{"resource":"a","attempts":[{"fencing_token":4,"highest_token":4,"kind":"claim","accepted":true,"version":0,"at":"2026-03-01T11:00:00Z"}]}`
	})
	var all []fencing.Attempt
	for a, err := range c.History(t.Context(), "a") {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	if len(all) != 2 || all[0].Token != 3 || all[0].Accepted || all[1].Kind != fencing.KindClaim || all[1].At.Hour() != 11 {
		t.Errorf("the history is %+v", all)
	}
	var records []fencing.Record
	for record, err := range c.Records(t.Context(), "a/") {
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	if len(records) != 2 || records[0].Resource != "a/1" || records[0].Mark != 7 || records[0].Version != 2 || records[1].Mark != 9 {
		t.Errorf("the records are %+v", records)
	}
	lock, err := c.Inspect(t.Context(), "a")
	if err != nil || lock.Holder != "me" || lock.Token != 7 || lock.Remaining != 1500*time.Millisecond || lock.TTL != 2*time.Second || lock.HeldFor != 500*time.Millisecond ||
		len(lock.Queue) != 1 || lock.Queue[0].Waiting != 30*time.Millisecond || *lock.Wire().HeldMS != 500 {
		t.Errorf("the lock is %+v, %v", lock, err)
	}
}
