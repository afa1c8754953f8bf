package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/backend"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// given is what clients of the server that wrote the stored file have, all under one key.
type given struct {
	Key    string       `json:"idempotency_key"`
	Leases []givenLease `json:"leases"`
	Cursor string       `json:"cursor"` // of the list below "list/"
	Record string       `json:"record"` // a guarded record
	Mark   int64        `json:"mark"`
}

type givenLease struct {
	ID       string `json:"lease_id"`
	Resource string `json:"resource"` // "" for several
	Token    int64  `json:"fencing_token"`
}

const (
	storedFile  = "testdata/formats/embedded.db.gz"
	storedGiven = "testdata/formats/given.json"
)

// TestStoredFile starts a server on a file that the previous version wrote, with what that version's clients have.
// Leases can be looked up, extended, listed and released; a retry under an idempotency key finds its lease; tokens
// rise; the guard keeps its high-water marks.
func TestStoredFile(t *testing.T) {
	if *update {
		writeStoredFile(t)
	}
	p := start(t, "FENCELOCK_DATA="+unpackedFile(t))
	had := readGiven(t)
	for _, lease := range had.Leases {
		const path = "/leases/current"
		id := wire.HeaderLease + ": " + lease.ID
		p.wants(p.ask(nil, "GET", path, "", id), http.StatusOK)
		var extended wire.Lease
		p.wants(p.ask(&extended, "POST", path+"/extend", `{"ttl_ms":50000}`, id), http.StatusOK)
		if extended.FencingToken != lease.Token {
			t.Errorf("%s: token %d, was %d", lease.Resource, extended.FencingToken, lease.Token)
		}
	}
	var again wire.Lease
	p.wants(p.ask(&again, "POST", "/locks", `{"resource":"keyed"}`, "Idempotency-Key: "+had.Key), http.StatusOK)
	if lease := had.Leases[1]; again.Resource != lease.Resource || again.FencingToken != lease.Token {
		t.Errorf("a retry under the key got %+v", again)
	}
	var page wire.LockPage
	p.wants(p.ask(&page, "GET", "/locks?prefix=list/&cursor="+url.QueryEscape(had.Cursor), ""), http.StatusOK)
	if len(page.Locks) == 0 {
		t.Error("the cursor's page is empty")
	}
	for _, lease := range had.Leases {
		p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.ID), http.StatusNoContent)
		if lease.Resource == "" {
			continue
		}
		if next := p.acquire(fmt.Sprintf(`{"resource":%q}`, lease.Resource)); next.FencingToken <= lease.Token {
			t.Errorf("%s: token %d after %d", lease.Resource, next.FencingToken, lease.Token)
		}
	}
	wantStoredRecord(p, had)
}

func wantStoredRecord(p *process, had given) {
	p.t.Helper()
	path := "/guarded/" + url.PathEscape(had.Record)
	var record wire.Record
	p.wants(p.ask(&record, "GET", path, ""), http.StatusOK)
	if record.HighestToken != had.Mark || string(record.Value) != `{"balance":90}` || record.Version != 1 {
		p.t.Errorf("the record is %+v", record)
	}
	put := func(token int64, status int) {
		p.t.Helper()
		p.wants(p.ask(nil, "PUT", path, `{"balance":80}`, fmt.Sprint("Fencing-Token: ", token)), status)
	}
	put(had.Mark-1, http.StatusPreconditionFailed)
	put(had.Mark, http.StatusOK)
	var history wire.HistoryPage
	p.wants(p.ask(&history, "GET", "/history?resource="+url.QueryEscape(had.Record), ""), http.StatusOK)
	if len(history.Attempts) != 5 || history.Attempts[0].FencingToken != had.Mark {
		p.t.Errorf("the history is %+v", history)
	}
}

func readGiven(t *testing.T) (had given) {
	t.Helper()
	text, err := os.ReadFile(storedGiven)
	if err == nil {
		err = json.Unmarshal(text, &had)
	}
	if err != nil {
		t.Fatal(err)
	}
	return had
}

func unpackedFile(t *testing.T) (path string) {
	t.Helper()
	packed, err := os.ReadFile(storedFile)
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "stored.db")
	writeFile(t, path, string(raw))
	return path
}

// writeStoredFile writes the fixtures, with fixed random numbers and at a fixed time. That time is in the future,
// because leases end by the clock while no server runs.
func writeStoredFile(t *testing.T) {
	t.Helper()
	cryptotest.SetGlobalRandom(t, 1)
	path := filepath.Join(t.TempDir(), "written.db")
	synctest.Test(t, func(t *testing.T) {
		<-time.After(time.Until(time.Date(2060, 1, 1, 0, 0, 0, 0, time.UTC)))
		text, err := json.MarshalIndent(writeLeases(t, path), "", "\t")
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, storedGiven, string(text)+"\n")
	})
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, storedFile, packed.String())
}

func writeLeases(t *testing.T, path string) given {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	b, err := backend.Open(t.Context(), config.Config{Data: path, DefaultTTL: time.Minute, MaxTTL: time.Minute, NodeTimeout: time.Second},
		backend.Options{Logger: quiet, Audit: quiet, Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	parts, ctx := errgroup.WithContext(ctx)
	b.Start(ctx, parts)
	<-time.After(time.Minute)
	had := given{Key: "a-key", Record: "accounts/1"}
	for _, req := range []lockcore.Request{
		{Resource: "orders/42 ü", Holder: "worker 7", Metadata: json.RawMessage(`{"a":[1]}`)},
		{Resource: "keyed", IdempotencyKey: had.Key},
		{Resources: []string{"list/a", "list/b"}},
		{Resource: "pool", Slots: 2},
		{Resource: "list/c"},
	} {
		lease, err := b.Locker.Acquire(ctx, req)
		if err != nil {
			t.Fatal(err)
		}
		had.Leases = append(had.Leases, givenLease{lease.ID, lease.Resource, int64(lease.Token)})
	}
	page, err := b.Locker.List(ctx, lockcore.ListRequest{Prefix: "list/", Limit: 1})
	if err != nil || page.NextCursor == "" {
		t.Fatalf("%+v, %v", page, err)
	}
	had.Cursor = page.NextCursor
	had.Mark = had.Leases[0].Token
	token := fencing.Token(had.Mark)
	if _, err := b.Guard.Claim(ctx, had.Record, token-1); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Guard.Write(ctx, had.Record, token, json.RawMessage(`{"balance":90}`)); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Guard.Claim(ctx, had.Record, token-1); err == nil {
		t.Fatal("the guard took a stale token")
	}
	stop()
	_ = parts.Wait()
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	return had
}
