package client_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/fencelock/fencelock/client"
)

// The server that granted the lease is frozen when the work ends: the other server gets the release.
func TestDoReleasesAtTheOtherServer(t *testing.T) {
	frozen := make(chan struct{})
	first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			<-frozen
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"kind":"lease","resource":"r","lease_id":"id","fencing_token":7,"ttl_ms":60000,"validity_ms":59000,"max_hold_remaining_ms":null,"holder":"","metadata":null}`))
	}))
	defer first.Close()
	defer close(frozen)
	released := make(chan string, 1)
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			released <- r.URL.Path
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer second.Close()
	c, err := client.New([]string{first.URL, second.URL}, client.WithTimeout(200*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Do(t.Context(), "r", func(context.Context, *client.Lease) error { return nil }); err != nil {
		t.Error(err)
	}
	select {
	case path := <-released:
		if path != "/leases/current" {
			t.Errorf("released at %s", path)
		}
	default:
		t.Error("the lease was not released")
	}
}
