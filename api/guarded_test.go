package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

func TestGuardedWrite(t *testing.T) {
	s := newService(t, &fake{write: func(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
		if _, limited := ctx.Deadline(); !limited {
			t.Error("the guard is asked without a time limit")
		}
		return fencing.Record{Resource: resource, Mark: token, Value: value, Version: 3}, nil
	}})
	for _, value := range []string{`{"paid": true}`, `7`, `"x"`, `null`, `[1,{"a":[]}]`} {
		a := s.call("PUT", "/guarded/orders/42", "  "+value+"\n", "Fencing-Token: 34").wants(http.StatusOK)
		want(t, "Cache-Control", a.header.Get("Cache-Control"), "no-store")
		record := decode[wire.Record](a)
		if record.Resource != "orders/42" || record.HighestToken != 34 || record.Version != 3 || string(record.Value) != strings.ReplaceAll(value, ": ", ":") {
			t.Errorf("record %+v", record)
		}
	}
}

func TestGuardedRead(t *testing.T) {
	s := newService(t, &fake{
		read: func(resource string) (fencing.Record, error) {
			return fencing.Record{Resource: resource, Mark: 34, Value: json.RawMessage(`{"paid":true}`), Version: 1}, nil
		},
		claim: func(_ context.Context, resource string, token fencing.Token) (fencing.Record, error) {
			return fencing.Record{Resource: resource, Mark: token}, nil
		},
	})
	a := s.call("GET", "/guarded/orders%2F42", "").wants(http.StatusOK)
	want(t, "read", strings.TrimSpace(a.body), `{"resource":"orders/42","highest_token":34,"value":{"paid":true},"version":1}`)
	want(t, "Fencing-Token", a.header.Get("Fencing-Token"), "")
	a = s.call("POST", "/guarded/orders/42", "", "Fencing-Token: 9007199254740991").wants(http.StatusOK)
	want(t, "claim", strings.TrimSpace(a.body), `{"resource":"orders/42","highest_token":9007199254740991,"value":null,"version":0}`)
}

// Whatever follows /guarded/ is the resource, for every method.
func TestGuardedPathIsTheResource(t *testing.T) {
	var read, claimed, written string
	s := newService(t, &fake{
		read: func(resource string) (fencing.Record, error) {
			read = resource
			return fencing.Record{Resource: resource, Mark: 1}, nil
		},
		claim: func(_ context.Context, resource string, token fencing.Token) (fencing.Record, error) {
			claimed = resource
			return fencing.Record{Resource: resource, Mark: token}, nil
		},
		write: func(_ context.Context, resource string, token fencing.Token, _ json.RawMessage) (fencing.Record, error) {
			written = resource
			return fencing.Record{Resource: resource, Mark: token, Version: 1}, nil
		},
	})
	for path, resource := range map[string]string{"a/claim": "a/claim", "a%2Fclaim": "a/claim", "claim": "claim", "a/history": "a/history"} {
		s.call("GET", "/guarded/"+path, "").wants(http.StatusOK)
		s.call("PUT", "/guarded/"+path, "1", "Fencing-Token: 1").wants(http.StatusOK)
		s.call("POST", "/guarded/"+path, "", "Fencing-Token: 1").wants(http.StatusOK)
		want(t, "read", read, resource)
		want(t, "written", written, resource)
		want(t, "claimed", claimed, resource)
	}
	a := s.call("PATCH", "/guarded/a/claim", "").wants(http.StatusMethodNotAllowed)
	want(t, "Allow", a.header.Get("Allow"), "GET, HEAD, POST, PUT, DELETE")
}

// A list has what its caller may read, page by page, and a cursor names nothing else.
func TestGuardedList(t *testing.T) {
	const secrets, batches = 2*api.MaxPage + 7, 3
	var asked []string
	s := newService(t, &fake{records: func(prefix, after string, limit int) (records []fencing.Record, err error) {
		asked = append(asked, after)
		if prefix != "a/" {
			t.Errorf("prefix %q", prefix)
		}
		names := []string{"a/1", "a/2", "a/3"}
		for i := range secrets {
			names = append(names, fmt.Sprintf("a/secret/%04d", i))
		}
		for i, name := range append(names, "a/z") {
			if name > after && len(records) < limit {
				records = append(records, fencing.Record{Resource: name, Mark: fencing.Token(10 + i), Version: int64(i), Value: json.RawMessage(`1`)})
			}
		}
		return records, nil
	}}, withAccess(t, line("w", "none=a/secret/ read=*")))
	page := func(query string) answered {
		t.Helper()
		asked = nil
		return s.call("GET", "/guarded?prefix=a/"+query, "", bearer("w")).wants(http.StatusOK)
	}
	want(t, "first", strings.TrimSpace(page("&limit=2").body),
		`{"records":[{"resource":"a/1","highest_token":10,"version":0},{"resource":"a/2","highest_token":11,"version":1}],"next_cursor":"a/2"}`)
	want(t, "second", strings.TrimSpace(page("&limit=1&cursor=a/2").body), `{"records":[{"resource":"a/3","highest_token":12,"version":2}],"next_cursor":"a/3"}`)
	want(t, "reads of the storage", len(asked), batches)
	want(t, "last", strings.TrimSpace(page("&limit=1&cursor=a/3").body), fmt.Sprintf(`{"records":[{"resource":"a/z","highest_token":%d,"version":%d}]}`, secrets+13, secrets+3))
	want(t, "after the last", strings.TrimSpace(page("&cursor=a/z").body), `{"records":[]}`)
	s.call("GET", "/guarded?prefix=a%00", "", bearer("w")).refusedField("prefix")
	s.call("GET", "/guarded?cursor=a%00", "", bearer("w")).refusedField("cursor")
	s.call("GET", "/guarded?limit=0", "", bearer("w")).refusedField("limit")
	newService(t, nil, func(o *api.Options) { o.Guard = nil }).call("GET", "/guarded", "").wants(http.StatusNotImplemented).problem("guard-not-configured")
}

func TestGuardedHistory(t *testing.T) {
	var asked string
	attempts := []fencing.Attempt{
		{Token: 1, Highest: 2, Kind: fencing.KindWrite, Version: 5, At: time.Date(2026, 3, 1, 14, 0, 0, 5e8, time.FixedZone("", 7200))},
		{Token: 2, Highest: 2, Kind: fencing.KindWrite, Accepted: true, Version: 5, At: time.Unix(1, 0)}, // two at one time
		{Token: 2, Highest: 2, Kind: fencing.KindWrite, Accepted: true, Version: 4, At: time.Unix(1, 0)},
		{Token: 2, Kind: fencing.KindClaim, Accepted: true, At: time.Unix(0, 1)},
	}
	s := newService(t, &fake{history: func(resource string, _ int) ([]fencing.Attempt, error) {
		asked = resource
		return attempts, nil
	}})
	page := func(query string) wire.HistoryPage {
		t.Helper()
		return decode[wire.HistoryPage](s.call("GET", "/history?resource=orders%2F42"+query, "").wants(http.StatusOK))
	}
	all := page("")
	want(t, "resource", asked, "orders/42")
	want(t, "attempts", len(all.Attempts), 4)
	want(t, "next", all.NextCursor, "")
	first := page("&limit=1")
	want(t, "body", strings.TrimSpace(s.call("GET", "/history?resource=orders/42&limit=1", "").body), `{"resource":"orders/42","attempts":[`+
		`{"fencing_token":1,"highest_token":2,"kind":"write","accepted":false,"version":5,"at":"2026-03-01T12:00:00.5Z"}],"next_cursor":"`+first.NextCursor+`"}`)
	attempts = append([]fencing.Attempt{{Token: 9, Kind: fencing.KindWrite, At: time.Now()}}, attempts...) // a newer one shifts none
	second := page("&limit=1&cursor=" + first.NextCursor)
	if len(second.Attempts) != 2 || second.Attempts[1].Version != 4 { // those of one moment stay together
		t.Errorf("second page %+v", second)
	}
	third := page("&limit=1&cursor=" + second.NextCursor)
	if len(third.Attempts) != 1 || third.Attempts[0].Kind != "claim" || third.NextCursor != "" {
		t.Errorf("third page %+v", third)
	}
	attempts = attempts[:1] // the others dropped out
	want(t, "attempts behind one that dropped out", len(page("&cursor="+first.NextCursor).Attempts), 0)
}

func TestRefusalsOfGuarded(t *testing.T) {
	var err error
	s := newService(t, &fake{
		read:    func(string) (fencing.Record, error) { return fencing.Record{}, err },
		history: func(string, int) ([]fencing.Attempt, error) { return nil, err },
		claim: func(context.Context, string, fencing.Token) (fencing.Record, error) {
			return fencing.Record{}, err
		},
		write: func(context.Context, string, fencing.Token, json.RawMessage) (fencing.Record, error) {
			return fencing.Record{}, err
		},
	})
	err = &fencing.StaleTokenError{Resource: "a", Presented: 33, Highest: 34}
	for _, a := range []answered{
		s.call("PUT", "/guarded/a", "1", "Fencing-Token: 33"),
		s.call("POST", "/guarded/a", "", "Fencing-Token: 33"),
	} {
		p := a.wants(http.StatusPreconditionFailed).problem("stale-token")
		if p.Resource != "a" || p.StaleDetails == nil || p.Presented != 33 || p.HighestToken != 34 {
			t.Errorf("%s", a.body)
		}
	}

	err = fencing.ErrNotFound
	s.call("GET", "/guarded/a", "").wants(http.StatusNotFound).problem("record-not-found")
	s.call("GET", "/history?resource=a", "").wants(http.StatusNotFound).problem("record-not-found")

	for _, away := range []error{
		errors.Join(fencing.ErrGuardUnavailable, errors.New("dial db.internal: refused")),
		context.DeadlineExceeded,
	} {
		err = away
		for _, a := range []answered{
			s.call("GET", "/guarded/a", ""),
			s.call("GET", "/history?resource=a", ""),
			s.call("POST", "/guarded/a", "", "Fencing-Token: 1"),
			s.call("PUT", "/guarded/a", "1", "Fencing-Token: 1"),
		} {
			a.wants(http.StatusServiceUnavailable).problem("guard-unavailable")
			want(t, "Retry-After", a.header.Get("Retry-After"), "1")
			if strings.Contains(a.body, "db.internal") {
				t.Errorf("the answer tells where the storage is: %s", a.body)
			}
		}
	}
	if !strings.Contains(s.log.String(), "db.internal") {
		t.Error("the log does not say why the guard is unavailable")
	}

	s.call("PUT", "/guarded/a", "1").wants(http.StatusPreconditionRequired).problem("token-required")
}

func TestNoGuard(t *testing.T) {
	s := newService(t, nil)
	s.call("GET", "/guarded/a", "").wants(http.StatusNotImplemented).problem("guard-not-configured")
	s.call("GET", "/history?resource=a", "").wants(http.StatusNotImplemented).problem("guard-not-configured")
	s.call("PUT", "/guarded/a", "1", "Fencing-Token: 1").wants(http.StatusNotImplemented).problem("guard-not-configured")
}

// A record that is there is claimed, deleted, and written as long as it does not grow, where the guard is full.
func TestFullGuard(t *testing.T) {
	f := &fake{
		usage: func() fencing.Usage { return fencing.Usage{Records: 3, Bytes: 9} },
		read: func(resource string) (fencing.Record, error) {
			if resource == "new" {
				return fencing.Record{}, fencing.ErrNotFound
			}
			return fencing.Record{Resource: resource, Mark: 1, Value: []byte("12345"), Version: 1}, nil
		},
		claim: func(_ context.Context, resource string, token fencing.Token) (fencing.Record, error) {
			return fencing.Record{Resource: resource, Mark: token}, nil
		},
		write: func(_ context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
			return fencing.Record{Resource: resource, Mark: token, Value: value, Version: 2}, nil
		},
	}
	s := newService(t, f, func(o *api.Options) { o.MaxRecords = fencing.Usage{Records: 3, Bytes: 8} })
	const token = "Fencing-Token: 1"
	s.call("PUT", "/guarded/old", "54321", token).wants(http.StatusOK)
	s.call("POST", "/guarded/old", "", token).wants(http.StatusOK)
	if gone := s.call("DELETE", "/guarded/old", "", token); gone.status != http.StatusOK || !strings.Contains(gone.body, `"value":null`) {
		t.Errorf("a delete: %d %s", gone.status, gone.body)
	}
	s.call("PUT", "/guarded/old", "654321", token).problem("too-many-records")
	s.call("PUT", "/guarded/new", "1", token).problem("too-many-records")
	s.call("POST", "/guarded/new", "", token).problem("too-many-records")
	s.call("DELETE", "/guarded/old", "{}", token, "Content-Type: application/json").refusedField("body")
	s.call("DELETE", "/guarded/old", "").problem("token-required")
}

// What a caller gives up, to a delete or to another caller, no longer counts against its limits;
// nor does what failed.
func TestRecordsOfACaller(t *testing.T) {
	var fail error
	f := &fake{
		claim: func(_ context.Context, resource string, token fencing.Token) (fencing.Record, error) {
			return fencing.Record{Resource: resource, Mark: token}, nil
		},
		write: func(_ context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
			if fail != nil {
				return fencing.Record{}, fail
			}
			return fencing.Record{Resource: resource, Mark: token, Value: value}, nil
		},
	}
	s := newService(t, f, withAccess(t, line("w", "acquire=* records=2 bytes=10"), line("v", "acquire=*")))
	put := func(who, name, value string) answered {
		return s.call("PUT", "/guarded/"+name, value, bearer(who), "Fencing-Token: 1")
	}
	put("w", "a", "12345").wants(http.StatusOK)
	put("w", "a", "54321").wants(http.StatusOK) // again: no more than before
	put("w", "b", "12345").wants(http.StatusOK)
	put("w", "b", "123456").problem("record-limit")
	s.call("DELETE", "/guarded/a", "", bearer("w"), "Fencing-Token: 1").wants(http.StatusOK)
	put("w", "b", "123456").wants(http.StatusOK)
	s.call("POST", "/guarded/b", "", bearer("w"), "Fencing-Token: 1").wants(http.StatusOK)
	put("w", "a", "12345").problem("record-limit") // a claim leaves the bytes of b
	s.call("POST", "/guarded/c", "", bearer("w"), "Fencing-Token: 1").problem("record-limit")
	put("v", "a", "1234567890").wants(http.StatusOK) // now the other's
	fail = &fencing.StaleTokenError{Resource: "c", Presented: 1, Highest: 9}
	put("w", "c", "1").wants(http.StatusPreconditionFailed)
	fail = nil
	s.call("POST", "/guarded/d", "", bearer("w"), "Fencing-Token: 1").wants(http.StatusOK)
	s.call("POST", "/guarded/b", "", bearer("w"), "Fencing-Token: 1").wants(http.StatusOK)
	put("w", "e", "1").problem("record-limit")
}

// A write whose answer is missing may have taken effect, so it counts: who hangs up on each would
// have no limit otherwise.
func TestAWriteInDoubtCounts(t *testing.T) {
	for _, doubt := range []error{fencing.ErrGuardUnavailable, context.Canceled} {
		f := &fake{write: func(context.Context, string, fencing.Token, json.RawMessage) (fencing.Record, error) {
			return fencing.Record{}, doubt
		}}
		s := newService(t, f, withAccess(t, line("w", "acquire=* records=2")))
		for _, name := range []string{"a", "b"} {
			s.call("PUT", "/guarded/"+name, "1", bearer("w"), "Fencing-Token: 1")
		}
		s.call("PUT", "/guarded/c", "1", bearer("w"), "Fencing-Token: 1").problem("record-limit")
	}
}
