package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// TestNamesBehindNginx: behind an nginx that passes paths on unchanged, every name works. Behind one that normalises
// them, a request is served for the name that was meant or refused, never served for another name.
func TestNamesBehindNginx(t *testing.T) {
	t.Parallel()
	p := start(t)
	proxy := func(pass string) *process {
		n := testenv.StartNginx(t, fmt.Sprintf("server { listen LISTEN; location / { proxy_pass %s; } }", pass))
		return &process{t: t, url: n.URL(), client: http.DefaultClient}
	}
	kept, rewritten := proxy(p.url), proxy(p.url+"/")

	ordinary := []string{"orders/42", "b", "a b", "é/🔒", "50%", "a+b=c&d;e", "..a/b..", "a.b/c:d@e", "claim", "a/claim", `"<>^{|}`, "q?x#y"}
	for _, name := range ordinary {
		for _, via := range []*process{p, kept, rewritten} {
			namedBy(t, via, name, url.PathEscape(name))
			namedBy(t, via, name, strings.ReplaceAll(url.PathEscape(name), "%2F", "/"))
		}
	}
	odd := []string{"a/../c", "a/./c", "./c", "../locks/c", "a//c", "/c", "c/", "//", ".", "..", "a/..", "a%2Fc", "a%2fc", "%63", `a\c`, "http://c/d", "%2e%2e/c"}
	for _, name := range odd {
		header := wire.HeaderResource + ": " + url.PathEscape(name)
		for _, via := range []*process{p, kept} {
			p.wants(via.ask(nil, "PUT", "/guarded/"+url.PathEscape(name), "1", "Fencing-Token: 1"), http.StatusBadRequest)
			namedBy(t, via, name, url.PathEscape(name), header)
		}
		for _, call := range []struct{ method, path string }{
			{"PUT", "/guarded/%s"}, {"POST", "/guarded/%s"}, {"GET", "/guarded/%s"}, {"GET", "/locks/%s"},
		} {
			body := ""
			lines := []string{header}
			if strings.Contains(call.path, "guarded") && call.method != "GET" {
				lines = append(lines, "Fencing-Token: 1")
			}
			if call.method == "PUT" {
				body = `"through the proxy"`
			}
			var answer struct {
				Resource string `json:"resource"`
			}
			resp, err := rewritten.try(t.Context(), &answer, call.method, fmt.Sprintf(call.path, url.PathEscape(name)), body, lines...)
			if err != nil && resp == nil {
				t.Fatal(err)
			}
			if resp.StatusCode < http.StatusBadRequest && answer.Resource != name {
				t.Errorf("%s of %q was served as %q: %d", call.method, name, answer.Resource, resp.StatusCode)
			}
		}
	}
	// c is what nginx made of most of them.
	if resp := p.ask(nil, "GET", "/guarded/c", ""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("the record c is there: %d", resp.StatusCode)
	}

	for _, via := range []*process{p, kept, rewritten} {
		for _, path := range []string{"a%FF", "a%C3", "%ED%A0%80", "%C0%AF"} {
			p.wants(via.ask(nil, "GET", "/locks/"+path, ""), http.StatusBadRequest)
			p.wants(via.ask(nil, "PUT", "/guarded/"+path, "1", "Fencing-Token: 1"), http.StatusBadRequest)
			p.wants(via.ask(nil, "POST", "/guarded/"+path, "", "Fencing-Token: 1"), http.StatusBadRequest)
			p.wants(via.ask(nil, "PUT", "/guarded/a", "1", "Fencing-Token: 1", wire.HeaderResource+": "+path), http.StatusBadRequest)
			p.wants(via.ask(nil, "GET", "/history?resource="+path, ""), http.StatusBadRequest)
		}
		p.wants(via.ask(nil, "POST", "/locks", "{\"resource\":\"a\xff\"}"), http.StatusBadRequest)
	}
}

// namedBy writes and reads a record whose name is in the path.
func namedBy(t *testing.T, via *process, name, path string, header ...string) {
	t.Helper()
	value, err := json.Marshal(via.url + " " + path)
	if err != nil {
		t.Fatal(err)
	}
	var record wire.Record
	if resp := via.ask(&record, "PUT", "/guarded/"+path, string(value), append(header, "Fencing-Token: 1")...); resp.StatusCode != http.StatusOK || record.Resource != name {
		t.Errorf("PUT /guarded/%s of %q through %s: %d, resource %q", path, name, via.url, resp.StatusCode, record.Resource)
	}
	if resp := via.ask(&record, "POST", "/guarded/"+path, "", append(header, "Fencing-Token: 1")...); resp.StatusCode != http.StatusOK || record.Resource != name || string(record.Value) != string(value) {
		t.Errorf("POST /guarded/%s of %q through %s: %d, %q has %s", path, name, via.url, resp.StatusCode, record.Resource, record.Value)
	}
	var lock wire.Lock
	if resp := via.ask(&lock, "GET", "/locks/"+path, "", header...); resp.StatusCode != http.StatusOK || lock.Resource != name {
		t.Errorf("GET /locks/%s of %q through %s: %d, %q", path, name, via.url, resp.StatusCode, lock.Resource)
	}
}
