package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// exampleID is the request id of all examples.
const exampleID = "X-Request-Id: checkout-7"

// TestExamplesAreWhatTheServerSays has the server refuse once with each type, and compares
// the response with the example. Of what another run counts otherwise it compares the kind.
func TestExamplesAreWhatTheServerSays(t *testing.T) {
	c := loadContract(t)
	refusals := exampleRefusals()
	for _, kind := range api.Kinds() {
		t.Run(kind.Slug, func(t *testing.T) {
			refuse, known := refusals[kind.Slug]
			if !known {
				t.Fatal("this test provokes no such refusal")
			}
			delete(refusals, kind.Slug)
			example, _ := c.doc.Components.Examples[kind.Slug].Value.Value.(map[string]any)
			if err := c.doc.Components.Schemas["Problem"].Value.VisitJSON(example, openapi3.EnableJSONSchema2020()); err != nil {
				t.Errorf("the example breaks the schema: %v", err)
			}
			got := refuse(t)
			got.problem(kind.Slug)
			want(t, "status", got.status, kind.Status)
			if said := decode[map[string]any](got); !reflect.DeepEqual(membersOf(example), membersOf(said)) {
				t.Errorf("the server says\n  %s\nand the example\n  %v", strings.TrimSpace(got.body), example)
			}
		})
	}
	for slug := range refusals {
		t.Errorf("there is no type %s", slug)
	}
}

// membersOf has every member but those that another run counts otherwise: of these, and of
// numbers in general, Go has several types.
func membersOf(problem map[string]any) map[string]string {
	members := make(map[string]string)
	for name, value := range problem {
		text, err := json.Marshal(value)
		if err != nil {
			panic(err)
		}
		members[name] = string(text)
		if slices.Contains([]string{"fencing_token", "remaining_ms", "waited_ms", "presented", "highest_token"}, name) {
			members[name] = "a number"
		}
		if name == "detail" && (strings.Contains(string(text), "the lease with token ") || strings.HasSuffix(string(text), ` at this server"`)) {
			members[name] = someNumber.ReplaceAllString(string(text), "N")
		}
	}
	return members
}

// someNumber is a token or a limit in a text.
var someNumber = regexp.MustCompile(`[0-9.]+`)

// exampleRefusals provoke each type of problem: with a real lock service where a request can
// bring it about, else with a service that fails like this.
func exampleRefusals() map[string]func(*testing.T) answered {
	all := map[string]func(*testing.T) answered{
		"not-found":              exampleOf("GET", "/nothing", ""),
		"method-not-allowed":     exampleOf("PATCH", "/locks", ""),
		"invalid-request":        exampleOf("POST", "/locks", `{"resource":"orders/42","ttl_ms":1}`),
		"lease-not-held":         exampleOf("GET", "/leases/current", "", "Fencelock-Lease: "+leaseID),
		"lock-not-held":          exampleOf("POST", "/breaks", `{"resource":"orders/42","any":true}`),
		"token-required":         exampleOf("PUT", "/guarded/orders/42", "1"),
		"record-not-found":       exampleOf("GET", "/guarded/orders/42", ""),
		"unsupported-media-type": exampleOf("POST", "/locks", `{"resource":"orders/42"}`, "Content-Type: text/plain"),
		"guard-not-configured": func(t *testing.T) answered {
			t.Helper()
			return newService(t, &fake{}, func(o *api.Options) { o.Guard = nil }).call("GET", "/guarded/orders/42", "", exampleID)
		},
		"host-not-served": func(t *testing.T) answered {
			t.Helper()
			s := newService(t, &fake{}, func(o *api.Options) { o.Hosts = &edge.Hosts{Listen: "127.0.0.1:8080"} })
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/readyz", http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "evil.example"
			req.Header.Set(wire.HeaderRequestID, "checkout-7")
			return s.do(req)
		},
		"request-timeout": func(t *testing.T) answered {
			t.Helper()
			s := newService(t, &fake{})
			req := httptest.NewRequest(http.MethodPost, "/locks", &lateBody{})
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(wire.HeaderRequestID, "checkout-7")
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, req)
			return answered{t: t, status: w.Code, header: w.Header(), body: w.Body.String()}
		},
		"unauthorized": func(t *testing.T) answered {
			t.Helper()
			return newService(t, &fake{}, withAccess(t)).call("GET", "/locks/orders/42", "", exampleID)
		},
		"forbidden": func(t *testing.T) answered {
			t.Helper()
			return newService(t, &fake{}, withAccess(t, line("worker-7", "read=*"))).call("POST", "/locks", `{"resource":"orders/42"}`, bearer("worker-7"), exampleID)
		},
		"too-many-listeners": func(t *testing.T) answered {
			t.Helper()
			hub, option := withEvents(t)
			s := newService(t, &fake{}, option)
			for i := range 256 {
				if _, err := hub.Listen(strconv.Itoa(i), true); err != nil {
					t.Fatal(err)
				}
			}
			return s.call("GET", "/events", "", exampleID)
		},
		"listener-limit": func(t *testing.T) answered {
			t.Helper()
			_, option := withEvents(t)
			s := newService(t, &fake{}, option)
			for range 64 {
				listen(t, s, "/events")
			}
			return s.call("GET", "/events", "", exampleID)
		},
		"proof-required": withProofs(false),
		"proof-refused":  withProofs(true),
	}
	maps.Copy(all, lockRefusals())
	for slug, row := range map[string]string{
		"request-limit": "`requests=`", "waiter-limit": "`waiters=`", "lease-limit": "`held=`", "record-limit": "`records=`",
		"too-many-records": "`FENCELOCK_MAX_RECORDS`", "list-limit": "8 listings", "body-too-large": "64 KiB of a body",
	} {
		all[slug] = atLimit(limitRows()[row])
	}
	quorum := &lockcore.QuorumError{Resource: "orders/42", Quorum: 2, Answered: 1, Granted: 1, RetryAfter: time.Second, Nodes: []lockcore.NodeOutcome{
		{Node: "redis-1:6379/0", Reason: "granted"}, {Node: "redis-2:6379/0", Reason: "timeout"}, {Node: "redis-3:6379/0", Reason: "connection refused"},
	}}
	for slug, err := range map[string]error{
		"no-quorum": quorum, "too-many-waiters": lockcore.ErrTooManyWaiters, "server-stopping": lockcore.ErrStopping,
		"tokens-exhausted": lockcore.ErrTokensExhausted, "identity-unavailable": access.ErrUnavailable, "internal-error": errors.New("broken"),
		"max-hold-reached": lockcore.ErrMaxHold, "guard-unavailable": fencing.ErrGuardUnavailable,
	} {
		all[slug] = failing(err)
	}
	return all
}

// exampleOf sends a request to a real lock service.
func exampleOf(method, path, body string, header ...string) func(*testing.T) answered {
	return func(t *testing.T) answered {
		t.Helper()
		return newRealService(t).call(method, path, body, append(header, exampleID)...)
	}
}

// lockRefusals are refusals beside a lease of worker-7.
func lockRefusals() map[string]func(*testing.T) answered {
	const held = `{"resource":"orders/42","holder":"worker-7"}`
	beside := func(ask func(s *service, held wire.Lease) answered) func(*testing.T) answered {
		return func(t *testing.T) answered {
			t.Helper()
			s := newRealService(t)
			return ask(s, decode[wire.Lease](s.call("POST", "/locks", held, "Idempotency-Key: k").wants(http.StatusCreated)))
		}
	}
	return map[string]func(*testing.T) answered{
		"lock-held": beside(func(s *service, _ wire.Lease) answered {
			return s.call("POST", "/locks", `{"resource":"orders/42"}`, exampleID)
		}),
		"wait-timeout": beside(func(s *service, _ wire.Lease) answered {
			return s.call("POST", "/locks", `{"resource":"orders/42","wait_ms":20000}`, "Idempotency-Key: other", "Prefer: wait=1", exampleID)
		}),
		"other-lease": beside(func(s *service, lease wire.Lease) answered {
			return s.call("POST", "/breaks", fmt.Sprintf(`{"resource":"orders/42","fencing_token":%d}`, lease.FencingToken-1), exampleID)
		}),
		"idempotency-mismatch": beside(func(s *service, _ wire.Lease) answered {
			return s.call("POST", "/locks", `{"resource":"orders/42","holder":"worker-8"}`, "Idempotency-Key: k", exampleID)
		}),
		"stale-token": beside(func(s *service, lease wire.Lease) answered {
			s.call("PUT", "/guarded/orders/42", "1", fmt.Sprint("Fencing-Token: ", lease.FencingToken)).wants(http.StatusOK)
			return s.call("PUT", "/guarded/orders/42", "2", fmt.Sprint("Fencing-Token: ", lease.FencingToken-1), exampleID)
		}),
	}
}

// atLimit is one request more than a limit allows.
func atLimit(row limitRow) func(*testing.T) answered {
	return func(t *testing.T) answered {
		t.Helper()
		f := &fake{}
		options := []func(*api.Options){withAccess(t, line("w", row.access))}
		if row.change != nil {
			options = append(options, row.change)
		}
		s := newService(t, f, options...)
		more, letGo := row.reach(t, s, f)
		s.named = "checkout-7"
		defer letGo()
		return more()
	}
}

// failing is a request to a service that fails.
func failing(err error) func(*testing.T) answered {
	return func(t *testing.T) answered {
		t.Helper()
		s := newService(t, &fake{
			acquire: func(context.Context, lockcore.Request) (lockcore.Lease, error) { return lockcore.Lease{}, err },
			extend:  func(string, time.Duration) (lockcore.Lease, error) { return lockcore.Lease{}, err },
			read:    func(string) (fencing.Record, error) { return fencing.Record{}, err },
		})
		switch {
		case errors.Is(err, lockcore.ErrMaxHold):
			return s.call("POST", "/leases/current/extend", "", "Fencelock-Lease: "+leaseID, exampleID)
		case errors.Is(err, fencing.ErrGuardUnavailable):
			return s.call("GET", "/guarded/orders/42", "", exampleID)
		}
		return s.call("POST", "/locks", `{"resource":"orders/42"}`, exampleID)
	}
}

// withProofs writes without a proof, or with one that is wrong.
func withProofs(wrong bool) func(*testing.T) answered {
	return func(t *testing.T) answered {
		t.Helper()
		keys := proofKeys(t, "k1")
		s := newRealService(t, func(o *api.Options) {
			o.Proofs, o.ProofRequired = func() *fencing.ProofKeys { return keys }, true
		})
		header := []string{"Fencing-Token: 34", exampleID}
		if wrong {
			header = append(header, proofHeader(keys.Prove("orders/42", 33)))
		}
		return s.call("PUT", "/guarded/orders/42", "1", header...)
	}
}

// lateBody does not arrive in time.
type lateBody struct{}

func (*lateBody) Read([]byte) (int, error) { return 0, os.ErrDeadlineExceeded }

var _ io.Reader = (*lateBody)(nil)
