package nodetest_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// For each rule, a model without the rule fails one of the rule's texts.
func TestWeaknesses(t *testing.T) {
	t.Parallel()
	for _, w := range replica.Weaknesses {
		open := func(tb testing.TB, wanted nodetest.Wanted) nodetest.Harness {
			tb.Helper()
			return model(tb, nodetest.ModelOptions{CounterTTL: wanted.CounterTTL, Weak: w.Weakness})
		}
		texts := w.Rule
		if number, err := strconv.Atoi(w.Rule); err == nil {
			texts = fmt.Sprintf("rule-%02d", number)
		}
		if len(nodetest.Failures(t, texts, false, open)) == 0 {
			t.Errorf("no text %s* fails though %s", texts, w.Name)
		}
	}
}

func TestEveryWeaknessIsRegistered(t *testing.T) {
	var all replica.Weakness
	for _, w := range replica.Weaknesses {
		if all&w.Weakness != 0 {
			t.Errorf("%s: registered twice", w.Name)
		}
		all |= w.Weakness
	}
	if all != replica.EveryWeakness {
		t.Errorf("%b are registered, of %b", all, replica.EveryWeakness)
	}
}
