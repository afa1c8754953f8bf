package node_test

import (
	"testing"

	"github.com/fencelock/fencelock/lockcore/node"
)

func TestEveryOutcomeHasItsRow(t *testing.T) {
	seen := make(map[string]node.Outcome)
	for o := range node.Outcome(node.Outcomes) {
		if o.String() == "" || o.Metric() == "" || (o.Reason() == "") != (o == node.Failed) {
			t.Errorf("%d: name %q, metric %q, reason %q", o, o, o.Metric(), o.Reason())
		}
		for _, text := range []string{"name " + o.String(), "metric " + o.Metric()} {
			if other, twice := seen[text]; twice {
				t.Errorf("%s: of %d and %d", text, other, o)
			}
			seen[text] = o
		}
	}
}
