package api_test

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// opens counts the lease ids that a Service opens: whoever wants something of a lease has to
// open its id first.
type opens struct {
	lockcore.Service
	n atomic.Int32
}

func (o *opens) Open(ctx context.Context, caller lockcore.Caller, id string) (lockcore.OpenedLease, error) {
	o.n.Add(1)
	return o.Service.Open(ctx, caller, id)
}

// An id is opened once a request: access control, the call and what is counted after it share
// the lease.
func TestAnIDIsOpenedOnce(t *testing.T) {
	for _, callers := range []string{"", "alice"} {
		counting := &opens{Service: newRealService(t).handler.Service}
		change := []func(*api.Options){func(o *api.Options) { o.Service = counting }}
		var header []string
		if callers != "" {
			change = append(change, withAccess(t, line(callers, "acquire=* held=5"))) // a limit: the table has the lease
			header = append(header, bearer(callers))
		}
		s := newService(t, nil, change...)
		lease := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a","min_hold_ms":20000}`, header...).wants(http.StatusCreated))
		want(t, "opens of an acquire", counting.n.Load(), 0)
		header = append(header, "Fencelock-Lease: "+lease.LeaseID)
		for _, request := range []struct {
			method, path string
			status       int
		}{
			{"GET", "", http.StatusOK}, {"POST", "/extend", http.StatusOK}, {"DELETE", "", http.StatusOK}, // held for its minimum
			{"DELETE", "", http.StatusNotFound}, {"POST", "/extend", http.StatusNotFound}, {"GET", "", http.StatusNotFound},
		} {
			counting.n.Store(0)
			s.call(request.method, "/leases/current"+request.path, "", header...).wants(request.status)
			want(t, fmt.Sprintf("with the caller %q, opens of %s%s (%d)", callers, request.method, request.path, request.status), counting.n.Load(), 1)
		}
	}
}
