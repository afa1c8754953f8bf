package client

import (
	"testing"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

func TestReadable(t *testing.T) {
	t.Parallel()
	caller := wire.Caller{Name: "c", Rules: []wire.Rule{{Prefix: "a/b/", Right: "none"}, {Prefix: "a/", Right: "acquire"}, {Prefix: "", Right: "none"}}}
	for prefix, want := range map[string]string{
		"":       `only the locks that c may read are shown: those that begin with "a/"`,
		"a":      `only the locks that c may read are shown: those that begin with "a/"`,
		"a/":     `locks that c may not read are not shown: those that begin with "a/b/"`,
		"a/c":    "",
		"a/b":    `locks that c may not read are not shown: those that begin with "a/b/"`,
		"a/b/":   "denied",
		"a/b/c":  "denied",
		"b":      "denied",
		"a/bar/": "",
	} {
		got, err := readable(caller, prefix)
		if err != nil {
			got = "denied"
		}
		if got != want || err != nil && cli.ExitCode(err) != cli.ExitDenied {
			t.Errorf("%q: %q, %v; want %q", prefix, got, err, want)
		}
	}
}
