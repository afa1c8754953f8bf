package sim

import (
	"slices"
	"testing"

	"github.com/fencelock/fencelock/lockcore"
)

// The servers of a protocol without a rule say themselves that an invariant is broken. With
// every rule in place none does, in any run of these tests: that is a violation (judge).
func TestInvariantsNoticeMutants(t *testing.T) {
	for name, broken := range map[string]lockcore.Invariant{
		"unequal grants are not confirmed":    lockcore.TokenOrder,
		"a missing counter reads as 0":        lockcore.TokenOrder,
		"the gate takes any incarnation":      lockcore.TokenOrder,
		"extend takes any grant of the lease": lockcore.ExtendOrder,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := Mutants[slices.IndexFunc(Mutants, func(m Mutant) bool { return m.Name == name })]
			acquired := 0
			for seed := uint64(1); acquired < 20_000; seed++ {
				r := Run(t, m.In(NewPlan(seed, 3)))
				if r.Invariants[broken] > 0 {
					return
				}
				acquired += r.Acquisitions
			}
			t.Errorf("no server noticed it in %d acquisitions", acquired)
		})
	}
}
