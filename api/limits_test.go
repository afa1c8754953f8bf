package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// limitRow is a row of the table of limits: what reaches the limit, and one request more.
type limitRow struct {
	access string // the caller's line
	change func(*api.Options)
	// reach reaches the limit with requests that continue until they are let go, and returns
	// how to try again.
	reach func(t *testing.T, s *service, f *fake) (more func() answered, letGo func())
}

// limitRows are the rows of docs/reference/access.md by their first column.
func limitRows() map[string]limitRow {
	waits := func(n, slots int) func(*testing.T, *service, *fake) (func() answered, func()) {
		return func(t *testing.T, s *service, f *fake) (func() answered, func()) {
			t.Helper()
			line := newInLine(t)
			f.acquire = line.acquire
			body := fmt.Sprintf(`{"resource":"a","wait_ms":60000,"slots":%d}`, slots)
			var waiting sync.WaitGroup
			for range n {
				waiting.Go(func() { s.call("POST", "/locks", body, bearer("w")) })
				await(t, "it waits", line.entered)
			}
			letGo := func() {
				for range n {
					line.results <- nil
				}
				waiting.Wait()
			}
			return func() answered { return s.call("POST", "/locks", body, bearer("w")) }, letGo
		}
	}
	// writes puts three bytes to each of two records, and then to another one.
	writes := func(ofAll bool) func(*testing.T, *service, *fake) (func() answered, func()) {
		return func(t *testing.T, s *service, f *fake) (func() answered, func()) {
			t.Helper()
			kept := map[string]int{}
			f.write = func(_ context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
				kept[resource] = len(value)
				return fencing.Record{Resource: resource, Mark: token, Value: value, Version: 1}, nil
			}
			f.read = func(string) (fencing.Record, error) { return fencing.Record{}, fencing.ErrNotFound }
			f.usage = func() (usage fencing.Usage) {
				for _, bytes := range kept {
					usage.Records++
					usage.Bytes += int64(bytes)
				}
				return usage
			}
			write := func(name string) answered {
				return s.call("PUT", "/guarded/"+name, "123", bearer("w"), "Fencing-Token: 1")
			}
			write("a").wants(http.StatusOK)
			write("b").wants(http.StatusOK)
			more := func() (last answered) {
				if last = write("more"); ofAll { // they are counted a while ago, in proportion to how long that took
					eventually(t, "the records are counted", func() bool {
						last = write("more")
						return last.status != http.StatusOK
					})
				}
				return last
			}
			return more, func() {}
		}
	}
	return map[string]limitRow{
		"`requests=`": {access: "read=* requests=0.01", reach: func(_ *testing.T, s *service, f *fake) (func() answered, func()) {
			f.inspect = func(resource string) (lockcore.LockState, error) { return lockcore.LockState{Resource: resource}, nil }
			look := func() answered { return s.call("GET", "/locks/a", "", bearer("w")) }
			look().wants(http.StatusOK)
			return look, func() {}
		}},
		"`waiters=`":              {access: "acquire=* waiters=2", reach: waits(2, 1)},
		"without `waiters=`":      {access: "acquire=*", change: func(o *api.Options) { o.MaxWaiters = 9 }, reach: waits(2, 2)},
		"`FENCELOCK_MAX_WAITERS`": {access: "acquire=* waiters=100", change: func(o *api.Options) { o.MaxWaiters = 5 }, reach: waits(2, 2)},
		"`held=`": {access: "acquire=* held=2", reach: func(_ *testing.T, s *service, f *fake) (func() answered, func()) {
			n := 0
			f.acquire = func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
				n++
				lease := grant(req.Resource)
				lease.ID += fmt.Sprint(n)
				return lease, nil
			}
			take := func() answered { return s.call("POST", "/locks", `{"resource":"a"}`, bearer("w")) }
			take().wants(http.StatusCreated)
			take().wants(http.StatusCreated)
			return take, func() {}
		}},
		"`records=`":                   {access: "acquire=* records=2", reach: writes(false)},
		"`bytes=`":                     {access: "acquire=* bytes=7", reach: writes(false)},
		"`FENCELOCK_MAX_RECORDS`":      {access: "acquire=*", change: func(o *api.Options) { o.MaxRecords.Records = 2 }, reach: writes(true)},
		"`FENCELOCK_MAX_RECORD_BYTES`": {access: "acquire=*", change: func(o *api.Options) { o.MaxRecords.Bytes = 7 }, reach: writes(true)},
		"8 listings": {access: "read=*", reach: func(t *testing.T, s *service, f *fake) (func() answered, func()) {
			t.Helper()
			begun, end := make(chan struct{}, 1), make(chan struct{})
			var listing sync.WaitGroup
			f.list = func(string, int, string) (lockcore.LockPage, error) {
				begun <- struct{}{}
				<-end
				return lockcore.LockPage{}, nil
			}
			list := func() answered { return s.call("GET", "/locks", "", bearer("w")) }
			for range 8 {
				listing.Go(func() { list() })
				await(t, "it lists", begun)
			}
			return list, func() { close(end); listing.Wait() }
		}},
		"64 KiB of a body": {access: "acquire=*", reach: func(_ *testing.T, s *service, _ *fake) (func() answered, func()) {
			return func() answered {
				return s.call("POST", "/locks", `{"resource":"`+strings.Repeat("a", api.MaxBodyBytes)+`"}`, bearer("w"))
			}, func() {}
		}},
	}
}

// Each limit of the table is refused as the table says, and every limit is in it.
func TestTableOfLimits(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/access.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Limits\n")
	section, _, _ = strings.Cut(section, "\n#")
	if !found {
		t.Fatal("docs/reference/access.md has no section Limits")
	}
	rows := limitRows()
	for _, row := range regexp.MustCompile("(?m)^\\| (.*?) \\| .* \\| (\\d+) `([a-z-]+)` \\|$").FindAllStringSubmatch(section, -1) {
		name, status, slug := row[1], row[2], row[3]
		t.Run(name, func(t *testing.T) {
			c, known := rows[name]
			if !known {
				t.Fatal("no case of this test reaches it")
			}
			delete(rows, name)
			f := &fake{}
			options := []func(*api.Options){withAccess(t, line("w", c.access))}
			if c.change != nil {
				options = append(options, c.change)
			}
			s := newService(t, f, options...)
			tryAgain, letGo := c.reach(t, s, f)
			more := tryAgain()
			letGo()
			if fmt.Sprint(more.status) != status {
				t.Fatalf("status %d, and %s in the table: %s", more.status, status, more.body)
			}
			more.problem(slug)
		})
	}
	if len(rows) > 0 {
		var names []string
		for name := range rows {
			names = append(names, name)
		}
		t.Errorf("the table lacks %s", slices.Sorted(slices.Values(names)))
	}
}

// What a caller cancels counts no longer against its limit. Another caller that has the resource meanwhile still holds it.
func TestACancelGivesRoomToItsCallerOnly(t *testing.T) {
	f := &fake{}
	s := newService(t, f, withAccess(t, line("w", "acquire=* held=1"), line("v", "acquire=* held=1")))
	f.acquire = func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		lease := grant(req.Resource)
		lease.ID += req.Resource
		return lease, nil
	}
	f.cancel = func(req lockcore.Request) []lockcore.LeasePart { return []lockcore.LeasePart{{Resource: req.Resource}} }
	take := func(who, resource string) answered {
		return s.call("POST", "/locks", fmt.Sprintf(`{"resource":%q}`, resource), bearer(who), "Idempotency-Key: "+resource)
	}
	cancel := func(who, resource string) {
		s.call("POST", "/cancel", fmt.Sprintf(`{"resource":%q}`, resource), bearer(who), "Idempotency-Key: "+resource).wants(http.StatusNoContent)
	}
	take("v", "a").wants(http.StatusCreated)
	cancel("w", "a") // w's own lease of it had ended before v got it
	take("v", "b").problem("lease-limit")
	cancel("v", "a")
	take("v", "b").wants(http.StatusCreated)
}
