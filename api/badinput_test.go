package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// TestBadInput sends every abuse to a service whose fake fails the test when
// anything is called: each must be refused, name its field, and change nothing.
func TestBadInput(t *testing.T) {
	s := newService(t, &fake{})
	long := strings.Repeat("x", 257)
	deep := strings.Repeat("[", 100) + strings.Repeat("]", 100)

	acquire := map[string][]string{ // by field, bodies
		"body": {
			``, ` `, `[]`, `"a"`, `1`, `null`, `{`, `{"resource":"a"}x`, `{"resource":"a"}{}`, `{"resource":"a",}`, `{resource:"a"}`,
			`{"resource":"a","resource":"b"}`, `{"resource":"a","\u0072esource":"b"}`, `{"resource":"a","ttl_ms":1000,"ttl_ms":2000}`,
			"{\"resource\":\"\xff\"}", `{"resource":"\ud800"}`, "{\"resource\":\"a\nb\"}", `{"resource":"a","metadata":` + deep + `}`,
			`{"resource":"a","metadata":{"a":1,"a":2}}`, "\ufeff{\"resource\":\"a\"}", `{"resource":"a","metadata":}`, `{"resource":"a","":1}`, `{"resources":["a","b"`, `{"resources":["a",]}`,
			`{"resource":"a","ttl_ms":01000}`,
		},
		"resource": {
			`{}`, `{"resource":""}`, `{"resource":1}`, `{"resource":null}`, `{"resource":["a"]}`, `{"resource":{}}`, `{"resource":true}`,
			`{"resource":"` + long + `"}`, `{"resource":"` + strings.Repeat("é", 129) + `"}`, `{"resource":"a\u0000"}`, `{"resource":"a\nb"}`, `{"resource":"\u007f"}`, `{"resource":"\u0085"}`,
		},
		"ttl_ms": {
			`{"resource":"a","ttl_ms":99}`, `{"resource":"a","ttl_ms":0}`, `{"resource":"a","ttl_ms":-1}`, `{"resource":"a","ttl_ms":60001}`,
			`{"resource":"a","ttl_ms":1000.5}`, `{"resource":"a","ttl_ms":1e3}`, `{"resource":"a","ttl_ms":1000.0}`, `{"resource":"a","ttl_ms":"1000"}`, `{"resource":"a","ttl_ms":null}`,
			`{"resource":"a","ttl_ms":9223372036854775808}`, `{"resource":"a","ttl_ms":-9223372036854775809}`, `{"resource":"a","ttl_ms":1e999}`, `{"resource":"a","ttl_ms":9223372036854775807}`,
			`{"resource":"a","ttl_ms":18446744073709552616}`, `{"resource":"a","ttl_ms":true}`, `{"resource":"a","ttl_ms":[1000]}`,
		},
		"wait_ms": {
			`{"resource":"a","wait_ms":-1}`, `{"resource":"a","wait_ms":600001}`, `{"resource":"a","wait_ms":0.5}`,
			`{"resource":"a","wait_ms":"0"}`, `{"resource":"a","wait_ms":null}`, `{"resource":"a","wait_ms":99999999999999999999}`,
		},
		"min_hold_ms": {
			`{"resource":"a","min_hold_ms":-1}`, `{"resource":"a","min_hold_ms":60001}`, `{"resource":"a","min_hold_ms":30001}`, `{"resource":"a","ttl_ms":1000,"min_hold_ms":1001}`, `{"resource":"a","min_hold_ms":"1"}`,
			`{"resource":"a","min_hold_ms":null}`, `{"resource":"a","min_hold_ms":0.5}`,
		},
		"max_hold_ms": {
			`{"resource":"a","max_hold_ms":-1}`, `{"resource":"a","max_hold_ms":315360000001}`, `{"resource":"a","max_hold_ms":9223372036854775807}`, `{"resource":"a","max_hold_ms":29999}`, `{"resource":"a","max_hold_ms":"1"}`,
			`{"resource":"a","max_hold_ms":null}`, `{"resource":"a","max_hold_ms":1e3}`,
		},
		"holder": {
			`{"resource":"a","holder":1}`, `{"resource":"a","holder":null}`, `{"resource":"a","holder":"` + long + `"}`, `{"resource":"a","holder":"\u001b[31m"}`, `{"resource":"a","holder":["b"]}`,
		},
		"metadata": {`{"resource":"a","metadata":"` + strings.Repeat("x", 4095) + `"}`},
		"Resource": {`{"Resource":"a"}`, `{"resource":"a","Resource":"b"}`},
		"ttl":      {`{"resource":"a","ttl":5}`},
		"resources": {
			`{"resources":["a"]}`, `{"resources":[]}`, `{"resources":null}`, `{"resources":"a"}`, `{"resources":{}}`, `{"resources":["a","b"],"resource":"c"}`,
			`{"resource":"c","resources":["a","b"]}`, `{"resources":["a","a"]}`, `{"resources":["a","\u0061"]}`, `{"resources":["a",1]}`, `{"resources":["a",null]}`,
			`{"resources":["a",""]}`, `{"resources":["a","b\n"]}`, `{"resources":["a","` + long + `"]}`, `{"resources":["a",["b"]]}`,
			`{"resources":["` + strings.Join(strings.Split("abcdefghijklmnopq", ""), `","`) + `"]}`,
		},
		strings.Repeat("n", 64):             {`{"` + strings.Repeat("n", 5000) + `":1}`},
		strings.Repeat("é", 31) + "x" + "…": {`{"` + strings.Repeat("é", 31) + "x" + strings.Repeat("é", 900) + `":1}`},
	}
	for field, bodies := range acquire {
		for _, body := range bodies {
			t.Run("acquire/"+shorten(field+" "+body), func(t *testing.T) {
				s.t = t
				s.call("POST", "/locks", body, "Content-Type: application/json").refusedField(field)
			})
		}
	}
	s.t = t

	for field, bodies := range map[string][]string{
		"body":     {`[]`, `{`, `{}{}`, `{"ttl_ms":1000,"ttl_ms":1000}`, ` `},
		"ttl_ms":   {`{"ttl_ms":99}`, `{"ttl_ms":60001}`, `{"ttl_ms":"1000"}`, `{"ttl_ms":null}`, `{"ttl_ms":1.5}`},
		"resource": {`{"resource":"a"}`},
	} {
		for _, body := range bodies {
			s.call("POST", "/leases/current/extend", body, "Fencelock-Lease: "+leaseID).refusedField(field)
		}
	}

	for _, body := range []string{``, ` `, `{`, `1 2`, `{"a":1,"a":2}`, "\"\xff\"", `"\udead"`, deep, `NaN`, `{"a":{"b":1,"b":2}}`} {
		s.call("PUT", "/guarded/a", body, "Content-Type: application/json", "Fencing-Token: 1").refusedField("body")
	}

	for _, token := range []string{"", "0", "-1", "+1", "1.0", "1e3", "abc", "01", "0x1", "9007199254740992", "18446744073709551617", strings.Repeat("9", 300), "1, 2", "١"} {
		s.call("PUT", "/guarded/a", "1", "Fencing-Token: "+token).refusedField("Fencing-Token")
		s.call("POST", "/guarded/a", "", "Fencing-Token: "+token).refusedField("Fencing-Token")
	}
	s.call("PUT", "/guarded/a", "1", "Fencing-Token: 1", "Fencing-Token: 2").refusedField("Fencing-Token")
	s.call("POST", "/guarded/a", "", "Fencing-Token: 1", "Fencing-Token: 2").refusedField("Fencing-Token")
	s.call("POST", "/guarded/a", "{}", "Fencing-Token: 1").refusedField("body")
	for _, token := range []string{"1", "", "x"} { // a read claims nothing, and says so
		s.call("GET", "/guarded/a", "", "Fencing-Token: "+token).refusedField("Fencing-Token")
	}
	s.call("GET", "/guarded/a?history=1", "").refusedField("history")

	for _, call := range [][]string{{"GET", "", ""}, {"POST", "/extend", ""}, {"POST", "/extend", `{"ttl_ms":1000}`}, {"DELETE", "", ""}} {
		method, current := call[0], "/leases/current"+call[1]
		s.call(method, current, call[2]).refusedField("Fencelock-Lease")
		s.call(method, current, call[2], "Fencelock-Lease: ").refusedField("Fencelock-Lease")
		s.call(method, current, call[2], "Fencelock-Lease: "+leaseID, "Fencelock-Lease: "+leaseID).refusedField("Fencelock-Lease")
	}
	for _, prefer := range []string{"wait=", "wait", "wait=-1", "wait=x", "wait=1.5", "wait=1e3", "wait=+1", `wait="`} {
		s.call("POST", "/locks", `{"resource":"a"}`, "Prefer: "+prefer).refusedField("Prefer")
	}

	for _, key := range []string{"", "a b", "é", "a\tb", strings.Repeat("k", 256)} {
		s.call("POST", "/locks", `{"resource":"a"}`, "Idempotency-Key: "+key).refusedField("Idempotency-Key")
	}
	s.call("POST", "/locks", `{"resource":"a"}`, "Idempotency-Key: a", "Idempotency-Key: b").refusedField("Idempotency-Key")

	for _, path := range []string{"", "%00", "a%0Ab", "%FF", "a%80", "%C2%85", "%7F", "%ED%A0%80", long, strings.Repeat("%C3%A9", 129)} {
		s.call("GET", "/locks/"+path, "").refusedField("resource")
		s.call("GET", "/guarded/"+path, "").refusedField("resource")
		s.call("GET", "/history?resource="+path, "").refusedField("resource")
		s.call("POST", "/guarded/"+path, "", "Fencing-Token: 1").refusedField("resource")
		s.call("PUT", "/guarded/"+path, "1", "Fencing-Token: 1").refusedField("resource")
	}

	for query, field := range map[string]string{
		"limit=0": "limit", "limit=1001": "limit", "limit=-1": "limit", "limit=x": "limit", "limit=1.5": "limit", "limit=": "limit", "limit=99999999999999999999": "limit",
		"limit=1&limit=2": "limit", "prefix=" + long: "prefix", "prefix=%FF": "prefix", "prefix=%00": "prefix",
		"cursor=%0A": "cursor", "cursor=" + strings.Repeat("c", 1025): "cursor", "prefx=a": "prefx", "a;b": "query", "%zz": "query",
	} {
		s.call("GET", "/locks?"+query, "").refusedField(field)
	}
	for query, field := range map[string]string{
		"": "resource", "limit=1": "resource", "resource=a&resource=b": "resource", "resource=a&limit=0": "limit", "resource=a&limit=1001": "limit",
		"resource=a&limit=-1": "limit", "resource=a&limits=1": "limits", "resource=a&cursor=x": "cursor", "resource=a&cursor=1": "cursor",
		"resource=a&cursor=1.0": "cursor", "resource=a&cursor=01.1": "cursor", "resource=a&cursor=1.1&cursor=1.1": "cursor", "resource=a&cursor=-.1": "cursor",
	} {
		s.call("GET", "/history?"+query, "").refusedField(field)
	}
}

// TestUnknownQueryParametersAreRefused holds every operation of the contract to its
// word, and sees that none acts.
func TestUnknownQueryParametersAreRefused(t *testing.T) {
	s := newRealService(t)
	held := decode[wire.Lease](s.call("POST", "/locks", `{"resource":"a"}`).wants(http.StatusCreated))
	values := strings.NewReplacer("{resource}", "a", "{file}", "console.css", "{type}", "lock-held")
	bodies := map[string]string{"POST /locks": `{"resource":"b"}`, "POST /cancel": `{"resource":"a"}`, "POST /breaks": `{"resource":"a","any":true}`, "PUT /guarded/{resource}": "1"}
	for _, operation := range loadContract(t).operations() {
		method, path, _ := strings.Cut(operation, " ")
		header := []string{"Fencelock-Lease: " + held.LeaseID, "Idempotency-Key: key"}
		if strings.HasPrefix(path, "/guarded/") && method != "GET" {
			header = append(header, "Fencing-Token: 1")
		}
		for query, name := range map[string]string{"fencing_token=1": "fencing_token", "a%20b": "a b", "=1": "query", "a;b": "query"} {
			a := s.call(method, values.Replace(path)+"?"+query, bodies[operation], header...)
			if a.refusedField(name); name != "query" && !strings.Contains(a.body, "is not a parameter of this request") {
				t.Errorf("%s?%s: %s", operation, query, a.body)
			}
		}
		if method == "GET" {
			s.call("HEAD", values.Replace(path)+"?fencing_token=1", "", header...).wants(http.StatusBadRequest)
		}
	}
	if !decode[wire.Lock](s.call("GET", "/locks/a", "").wants(http.StatusOK)).Held || decode[wire.Lock](s.call("GET", "/locks/b", "").wants(http.StatusOK)).Held {
		t.Error("a refused request acted")
	}
}

func shorten(name string) string { return fmt.Sprintf("%.40q", name) }

func TestBodiesThatAreNotTaken(t *testing.T) {
	t.Parallel()
	s := newService(t, &fake{})
	calls := []func(body string, header ...string) answered{
		func(body string, header ...string) answered { return s.call("POST", "/locks", body, header...) },
		func(body string, header ...string) answered {
			return s.call("POST", "/leases/current/extend", body, append([]string{"Fencelock-Lease: " + leaseID}, header...)...)
		},
		func(body string, header ...string) answered {
			return s.call("PUT", "/guarded/a", body, append(header, "Fencing-Token: 1")...)
		},
	}
	for _, call := range calls {
		for _, contentType := range []string{"text/plain", "application/x-www-form-urlencoded", "application/jsonp", "application/json; charset=latin1", "application/merge-patch+json", "/", ""} {
			call(`{"resource":"a"}`, "Content-Type: "+contentType).wants(http.StatusUnsupportedMediaType).problem("unsupported-media-type")
		}
		huge := `"` + strings.Repeat("x", api.MaxBodyBytes-1) + `"`
		call(huge).wants(http.StatusRequestEntityTooLarge).problem("body-too-large")
		call(huge + strings.Repeat(" ", 10<<20)).wants(http.StatusRequestEntityTooLarge).problem("body-too-large")
	}
}

// A body whose length is not announced is measured while it is read.
func TestChunkedBodyIsMeasured(t *testing.T) {
	t.Parallel()
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		return grant(req.Resource), nil
	}})
	chunked := func(size int) int {
		body := `{"resource":"a"}`
		body += strings.Repeat(" ", size-len(body))
		resp, err := http.Post(s.url+"/locks", "application/json", struct{ io.Reader }{strings.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		want(t, "what comes behind it is not read, since it is not checked", resp.Close, true)
		return resp.StatusCode
	}
	want(t, "status of the largest", chunked(api.MaxBodyBytes), http.StatusCreated)
	want(t, "status of one byte more", chunked(api.MaxBodyBytes+1), http.StatusRequestEntityTooLarge)
	want(t, "status of far more", chunked(20*api.MaxBodyBytes), http.StatusRequestEntityTooLarge)
}

// What is handed on must not change when the buffer serves the next request.
func TestWhatIsHandedOnIsNotTheBuffer(t *testing.T) {
	var value, metadata json.RawMessage
	s := newService(t, &fake{
		acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
			metadata = req.Metadata
			return grant(req.Resource), nil
		},
		write: func(_ context.Context, resource string, token fencing.Token, v json.RawMessage) (fencing.Record, error) {
			value = v
			return fencing.Record{Resource: resource, Mark: token, Value: v, Version: 1}, nil
		},
	})
	for range 20 { // the pool forgets now and then
		s.call("PUT", "/guarded/a", `"first value, long enough"`, "Fencing-Token: 1").wants(http.StatusOK)
		s.call("POST", "/locks", `{"resource":"a","metadata":"first metadata"}`).wants(http.StatusCreated)
		kept, keptMeta := value, metadata
		for range 4 {
			s.call("PUT", "/guarded/a", strings.Repeat("7", 100), "Fencing-Token: 1").wants(http.StatusOK)
		}
		if string(kept) != `"first value, long enough"` || string(keptMeta) != `"first metadata"` {
			t.Fatalf("changed afterwards: %s, %s", kept, keptMeta)
		}
	}
}

func TestLargestBodyIsTaken(t *testing.T) {
	s := newService(t, &fake{acquire: func(_ context.Context, req lockcore.Request) (lockcore.Lease, error) {
		want(t, "metadata", len(req.Metadata), 4096)
		return grant(req.Resource), nil
	}})
	body := `{"resource":"a","metadata":"` + strings.Repeat("x", 4094) + `"}`
	body += strings.Repeat(" ", api.MaxBodyBytes-len(body))
	s.call("POST", "/locks", body).wants(http.StatusCreated)
	s.call("POST", "/locks", body+" ").wants(http.StatusRequestEntityTooLarge)
}
