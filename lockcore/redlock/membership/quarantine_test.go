package membership

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/lockcore/node"
)

// noted is a node that is not admitted. Another server may be the first to note its quarantine.
type noted struct {
	fakeNode
	note  string
	other string // what another server notes between the look and the note
}

func (n *noted) Observe(context.Context) (node.Observation, error) {
	return node.Observation{Empty: true, Note: n.note}, nil
}

func (n *noted) Quarantine(_ context.Context, note string) error {
	for _, first := range []string{n.other, note} {
		if n.note == "" {
			n.note = first
		}
	}
	return nil
}

// Two servers look at the same time. Only the one that began the quarantine has a line about it in its audit log.
func TestAQuarantineIsAuditedOnce(t *testing.T) {
	for other, lines := range map[string]int{"": 1, "another server's": 0} {
		var log bytes.Buffer
		config := testConfig()
		config.Audit = slog.New(slog.NewTextHandler(&log, nil))
		c := New(config, []node.Node{&noted{fakeNode: fakeNode{name: "node1"}, other: other}})
		seen, err := c.observeOrQuarantine(t.Context(), 0)
		if err != nil || seen.Note == "" {
			t.Errorf("%+v, %v", seen, err)
		}
		if n := strings.Count(log.String(), actQuarantine); n != lines {
			t.Errorf("another server noted %q: %d lines, want %d: %s", other, n, lines, log.String())
		}
	}
}
