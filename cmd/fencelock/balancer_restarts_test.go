package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Clients send an idempotency key, and repeat only a wait that its server has ended. They see no error while the
// servers behind each shipped configuration restart one after the other, as the page on load balancers describes.
func TestShippedBalancersHideRollingRestarts(t *testing.T) {
	testenv.Long(t, "a balancer's configuration that shows callers a restart")
	t.Parallel()
	for name, balancer := range map[string]func(*fleet) string{"nginx": (*fleet).nginx, "haproxy": (*fleet).haproxy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 2)
			url := balancer(f)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var working sync.WaitGroup
			var mu sync.Mutex
			pairs, failed := 0, map[string]int{}
			count := func() int {
				mu.Lock()
				defer mu.Unlock()
				return pairs
			}
			for i := range 8 {
				working.Go(func() {
					for n := 0; ctx.Err() == nil; n++ {
						problem := pairThrough(url, fmt.Sprintf("r%d", i), fmt.Sprintf("key-%d-%d", i, n))
						mu.Lock()
						pairs++
						if problem != "" {
							failed[problem]++
						}
						mu.Unlock()
						select { // users think, and their connections idle meanwhile
						case <-ctx.Done():
						case <-time.After(time.Duration(n%7) * 10 * time.Millisecond):
						}
					}
				})
			}
			underLoad(t, url, func() {
				for range 5 {
					for i := range f.servers {
						f.restart(i)
						f.awaitUse(i, url)
						wanted := count() + 20
						f.servers[i].until("the load continues", func() bool { return count() >= wanted })
					}
				}
			}).costs(f, "behind nginx or HAProxy")
			stop()
			working.Wait()
			if len(failed) > 0 {
				t.Errorf("of %d pairs failed: %v", pairs, failed)
			}
		})
	}
}

// pairThrough takes a lock and releases it, and says what went wrong.
func pairThrough(url, resource, key string) (problem string) {
	do := func(method, path, body, name, value string) (*http.Response, string) {
		req, err := http.NewRequest(method, url+path, strings.NewReader(body))
		if err != nil {
			return nil, err.Error()
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set(name, value)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return nil, method + ": " + err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		text, _ := io.ReadAll(resp.Body)
		if resp.StatusCode >= http.StatusBadRequest {
			return nil, fmt.Sprintf("%s: %s %.120s", method, resp.Status, text)
		}
		return resp, string(text)
	}
	ask := func() (*http.Response, string) {
		return do("POST", "/locks", fmt.Sprintf(`{"resource":%q,"ttl_ms":10000,"wait_ms":5000}`, resource), "Idempotency-Key", key)
	}
	resp, text := ask()
	if resp == nil && strings.Contains(text, "server-stopping") { // a wait ends with its server, and is asked for again
		resp, text = ask()
	}
	if resp == nil {
		return text
	}
	_, id, _ := strings.Cut(text, `"lease_id":"`)
	id, _, _ = strings.Cut(id, `"`)
	if resp, text = do("DELETE", "/leases/current", "", "Fencelock-Lease", id); resp == nil {
		return text
	}
	return ""
}
