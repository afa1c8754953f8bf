package client

import (
	"bytes"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/api/wire"
)

func TestInWords(t *testing.T) {
	for ms, want := range map[int64]string{0: "0s", 1: "1ms", 999: "999ms", 1500: "1s", 61_000: "1m1s"} {
		if got := msInWords(ms); got != want {
			t.Errorf("%d is %q, want %q", ms, got, want)
		}
	}
	for want, ready := range map[string]wire.Ready{
		"0 of 1 vote":         {Nodes: []wire.Node{{Name: "n1", State: "unreachable"}}},
		"--bearer-token-file": {}, // the nodes are shown to no unknown caller
	} {
		var out bytes.Buffer
		if err := printNodes(&out, ready); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("no %q: %v %s", want, err, out.String())
		}
	}
}
