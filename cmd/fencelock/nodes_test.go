package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

func TestCommandsOnAServerThatIsNotReady(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/readyz" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write([]byte(`{"ready":false,"reason":"waiting","quorum":1,"voting":0,"nodes":[{"name":"n1","state":"quarantined","reason":"restarted","since_ms":1500,"wait_ms":2500}]}`))
	}))
	defer server.Close()
	for args, says := range map[string]string{
		"nodes":              "n1    quarantined  1s   2s    restarted",
		"nodes -o json":      `"wait_ms": 2500`,
		"healthcheck":        "the server grants nothing: waiting",
		"healthcheck --live": "",
	} {
		var out bytes.Buffer
		root := rootCommand()
		root.SetArgs(append(strings.Fields(args), "--url", server.URL))
		root.SetOut(&out)
		root.SetErr(&out)
		code := cli.Run(t.Context(), root)
		if wanted := map[bool]int{true: 0, false: cli.ExitFailed}[strings.HasSuffix(args, "--live")]; code != wanted || !strings.Contains(out.String(), says) {
			t.Errorf("%s: code %d, want %d and %q: %s", args, code, wanted, says, out.String())
		}
	}
}

// nodes --wait ends when all nodes vote, and with an error if one does not.
func TestNodesWaits(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		voting, second := 1, "quarantined"
		if asked.Add(1) > 2 {
			voting, second = 2, "voting"
		}
		_, _ = fmt.Fprintf(w, `{"ready":true,"reason":"","quorum":1,"voting":%d,"nodes":[{"name":"n1","state":"voting"},{"name":"n2","state":%q}]}`,
			voting, second)
	}))
	defer server.Close()
	for _, c := range []struct {
		wait string
		code int
		says string
	}{{"1ms", cli.ExitFailed, "after 1ms only 1 of 2 nodes vote"}, {"1m", 0, "2 of 2 vote"}} {
		var out bytes.Buffer
		root := rootCommand()
		root.SetArgs([]string{"nodes", "--wait", c.wait, "--url", server.URL})
		root.SetOut(&out)
		root.SetErr(&out)
		if code := cli.Run(t.Context(), root); code != c.code || !strings.Contains(out.String(), c.says) {
			t.Errorf("%s: code %d: %s", c.wait, code, out.String())
		}
	}
	if n := asked.Load(); n != 3 {
		t.Errorf("asked %d times, 3 were enough", n)
	}
}
