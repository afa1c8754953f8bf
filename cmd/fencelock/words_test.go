package main

import (
	"strings"
	"testing"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// The most frequent mistakes get a message in plain words: what is wrong, with what, and what to do.
func TestMessagesArePlain(t *testing.T) {
	t.Parallel()
	p := start(t)
	tls := startOverTLS(t)
	for _, c := range []struct {
		words, says string
		code        int
	}{
		{"acquire --ttl 5 r", "--ttl 5: a duration needs a unit: write 5s for seconds", 2},
		{"acquire --ttl 5x r", "--ttl 5x: must be a duration such as", 2},
		{"acquire --ttl", "--ttl needs a value", 2},
		{"acquire --ttl 20h r", "--ttl must be from 100ms to 1m0s, in whole milliseconds; the server's FENCELOCK_MAX_TTL sets the maximum", 2},
		{"acquire -E x r", "--conflict-exit-code x: must be a whole number", 2},
		{"ls --watch=5", "--watch 5: must be true or false", 2},
		{"ls --nosuch", "fencelock ls has no flag --nosuch: fencelock ls --help lists them", 2},
		{"ls -z", "fencelock ls has no flag -z", 2},
		{"nodes now", `fencelock nodes takes no arguments, and got "now"`, 2},
		{"relaese", `fencelock has no command "relaese": did you mean release?`, 2},
		{"guard dance", `fencelock guard has no command "dance": fencelock guard --help lists them`, 2},
		{"get", "an argument is missing: use fencelock get RESOURCE", 2},
		{"ls a b", "too many arguments (2): use fencelock ls [PREFIX]", 2},
		{"run r -- ./nosuch", "./nosuch does not exist", 127},
		{"ls --url http://127.0.0.1:1", "http://127.0.0.1:1 refuses connections, so no server listens there. Start one with fencelock serve, or name another address with --url", 69},
		{"nodes --url http://127.0.0.1:1", "no server responds: http://127.0.0.1:1 refuses connections", 69},
		{"healthcheck --url http://127.0.0.1:1", "no server responds: http://127.0.0.1:1 refuses connections", 1},
		{"healthcheck --live --url http://127.0.0.1:1,URL", "", 0},
		{"ls --url http://nosuch.invalid", "nosuch.invalid", 69},
		{"ls --url https://HOST", "speaks http, not https", 69},
		{"ls --url TLS", `(issued by "CN=authority"): set --ca-file or FENCELOCK_CA_FILE`, 69},
		{"ls --url http://TLSHOST", "fencelock has nothing at this address (", 2},
		{"ls --url ftp://x", "every server must be a URL such as http://127.0.0.1:8080", 2},
		{"extend nosuch", "the lease has ended", cli.ExitLost},
	} {
		host := func(url string) string { _, h, _ := strings.Cut(url, "://"); return h }
		words := strings.NewReplacer("TLSHOST", host(tls.url), "TLS", tls.url, "HOST", host(p.url), "URL", p.url).Replace(c.words)
		got := p.tool("", nil, strings.Fields(words)...)
		got.wants(t, words, c.code, "", c.says)
		for _, riddle := range []string{"dial tcp", "connect:", "missing unit", "strconv", "exec:", "invalid argument"} {
			if strings.Contains(got.errOut, riddle) {
				t.Errorf("%s says %s", words, got.errOut)
			}
		}
	}
}
