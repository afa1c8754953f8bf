package main

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// Four callers wait under keys when the server of an embedded file stops, and repeat their requests until they have
// the lease. The order of the waiters stays the same, and a caller that comes after the restart is the last.
func TestQueueOutlivesARestart(t *testing.T) {
	t.Parallel()
	data := "FENCELOCK_DATA=" + filepath.Join(t.TempDir(), "node.db")
	p := start(t, data)
	held := p.acquire(`{"resource":"r","ttl_ms":60000}`)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	turns := make(chan string, 5)
	for i := range 4 {
		go p.insists(ctx, fmt.Sprint("w", i), turns)
		p.awaitWaiting("r", i+1)
	}
	p.Signal(syscall.SIGTERM)
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	p = start(t, data, "FENCELOCK_LISTEN="+strings.TrimPrefix(p.url, "http://"))
	go p.insists(ctx, "w4", turns)
	p.awaitWaiting("r", 5)
	p.release(held)
	var order []string
	for range 5 {
		select {
		case who := <-turns:
			order = append(order, who)
		case <-ctx.Done():
			t.Fatalf("only %v had their turn", order)
		}
	}
	if !slices.IsSorted(order) {
		t.Errorf("the turns are %v", order)
	}
}

// insists asks for "r" under a key until it has the lease, reports that, and releases the lease.
func (p *process) insists(ctx context.Context, key string, turns chan<- string) {
	body := fmt.Sprintf(`{"resource":"r","holder":%q,"wait_ms":60000,"ttl_ms":30000}`, key)
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for ctx.Err() == nil {
		var lease wire.Lease
		resp, err := p.try(ctx, &lease, "POST", "/locks", body, "Idempotency-Key: "+key)
		if err == nil && resp.StatusCode == http.StatusCreated {
			turns <- key
			if _, err := p.try(ctx, nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID); err != nil && ctx.Err() == nil {
				p.t.Error(err)
			}
			return
		}
		<-again.C
	}
}
