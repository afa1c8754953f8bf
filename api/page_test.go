package api_test

import (
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/console"
)

func withConsole(o *api.Options) { o.Console = true }

func TestConsoleFiles(t *testing.T) {
	s := newService(t, &fake{}, withConsole)
	paths := map[string]string{"/console": console.Page}
	for name := range console.Files() {
		paths["/console/"+name] = name
	}
	for path, name := range paths {
		a := s.call("GET", path, "").wants(http.StatusOK)
		if a.body != string(console.Files()[name].Body) {
			t.Errorf("%s is not %s", path, name)
		}
		for header, value := range map[string]string{
			"Content-Security-Policy": console.Policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Opener-Policy": "same-origin", "Cache-Control": "no-cache",
		} {
			want(t, path+" "+header, a.header.Get(header), value)
		}
		again := s.call("GET", path, "", "If-None-Match: "+a.header.Get("ETag")).wants(http.StatusNotModified)
		want(t, "body", again.body, "")
		s.call("HEAD", path, "").wants(http.StatusOK)
	}
	s.call("GET", "/console/console.go", "").wants(http.StatusNotFound).problem("not-found")
	s.call("GET", "/console/..%2Fpage.go", "").wants(http.StatusNotFound).problem("not-found")
	s.call("POST", "/console", "").wants(http.StatusMethodNotAllowed)
}

// A browser finds the console at the address that the log shows, and a program the contract.
func TestRootLeadsOn(t *testing.T) {
	const browser = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	s, none := newService(t, &fake{}, withConsole), newService(t, &fake{})
	for _, c := range []struct {
		s            *service
		path, accept string
		to, leads    string
	}{
		{s, "/", browser, "console", "/console"},
		{s, "/", "Accept: */*", "openapi.yaml", "/openapi.yaml"},
		{s, "/", "Accept: application/json", "openapi.yaml", "/openapi.yaml"},
		{s, "/console/", browser, "../console", "/console"},
		{none, "/", browser, "openapi.yaml", "/openapi.yaml"},
	} {
		c.s.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		want(t, c.path+" "+c.accept, c.s.call("GET", c.path, "", c.accept).wants(http.StatusFound).header.Get("Location"), c.to)
		c.s.call("HEAD", c.path, "", c.accept).wants(http.StatusFound)
		c.s.client.CheckRedirect = nil
		a := c.s.call("GET", c.path, "", c.accept).wants(http.StatusOK)
		want(t, c.path+" leads to", a.body, c.s.call("GET", c.leads, "").body)
	}
	s.call("POST", "/", "").wants(http.StatusMethodNotAllowed)
}

func TestConsoleIsSwitchedOff(t *testing.T) {
	s := newService(t, &fake{})
	s.call("GET", "/console", "").wants(http.StatusNotFound).problem("not-found")
	s.call("GET", "/console/app.js", "").wants(http.StatusNotFound).problem("not-found")
}

// TestConsoleKeepsToItsPolicy finds what the policy would refuse in a browser,
// and ways to run what somebody named a resource.
func TestConsoleKeepsToItsPolicy(t *testing.T) {
	if strings.Contains(console.Policy, "unsafe") || strings.Contains(console.Policy, "http") || !strings.HasPrefix(console.Policy, "default-src 'none'") {
		t.Errorf("policy %s", console.Policy)
	}
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|https?://|\sstyle=|\son[a-z]+="|<style|<script>|localStorage`)
	for name, file := range console.Files() {
		body := strings.ReplaceAll(string(file.Body), `xmlns="http://www.w3.org/2000/svg"`, "")
		if found := forbidden.FindString(body); found != "" {
			t.Errorf("%s has %q", name, found)
		}
	}
}
