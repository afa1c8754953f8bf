package client_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// instant is a transport that responds at once, without a network.
type instant struct{ granted string }

func (t *instant) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_ = r.Body.Close()
	}
	if r.Method == http.MethodDelete {
		return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, nil
	}
	header := http.Header{"Content-Type": {"application/json"}}
	return &http.Response{StatusCode: http.StatusCreated, Header: header, Body: io.NopCloser(strings.NewReader(t.granted)), Request: r}, nil
}

func instantHTTP(tb testing.TB) *http.Client {
	tb.Helper()
	granted, err := json.Marshal(lease(time.Minute))
	if err != nil {
		tb.Fatal(err)
	}
	return &http.Client{Transport: &instant{string(granted)}}
}

func instantClient(tb testing.TB) *client.Client {
	tb.Helper()
	c, err := client.New([]string{"http://localhost"}, client.WithHTTPClient(instantHTTP(tb)))
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func pair(tb testing.TB, c *client.Client) {
	tb.Helper()
	l, err := c.TryAcquire(tb.Context(), "r")
	if err == nil {
		err = l.Release(tb.Context())
	}
	if err != nil {
		tb.Fatal(err)
	}
}

// barePair acquires and releases with net/http alone. It remembers and repeats nothing.
func barePair(tb testing.TB, c *http.Client) {
	tb.Helper()
	var granted wire.Lease
	send := func(method, path, body string) {
		req, err := http.NewRequestWithContext(tb.Context(), method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			tb.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(wire.HeaderLease, granted.LeaseID)
		resp, err := c.Do(req)
		if err != nil {
			tb.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode == http.StatusCreated {
			err = json.NewDecoder(resp.Body).Decode(&granted)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	send(http.MethodPost, "/locks", `{"resource":"r","ttl_ms":10000}`)
	send(http.MethodDelete, "/leases/current", "")
}

// BenchmarkPair measures what the client itself adds to the cost of an acquire and a release with net/http alone.
func BenchmarkPair(b *testing.B) {
	b.Run("client", func(b *testing.B) {
		c := instantClient(b)
		b.ReportAllocs()
		for b.Loop() {
			pair(b, c)
		}
	})
	b.Run("bare", func(b *testing.B) {
		c := instantHTTP(b)
		b.ReportAllocs()
		for b.Loop() {
			barePair(b, c)
		}
	})
}

// An acquire and a release make at most maxAllocations allocations, including those of net/http's client and of the
// responses in this test.
func TestAllocationsOfAPair(t *testing.T) {
	const maxAllocations = 84 + droppedByRace // 81: two are the messages that a batch could take
	c := instantClient(t)
	if got := testing.AllocsPerRun(500, func() { pair(t, c) }); got > maxAllocations {
		t.Errorf("a pair has %.0f allocations, and may have %d", got, maxAllocations)
	}
}
