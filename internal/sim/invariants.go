package sim

import (
	"fmt"
	"sync"

	"github.com/fencelock/fencelock/lockcore"
)

// invariants records which invariants the servers reported as broken.
type invariants struct {
	mu     sync.Mutex
	broken map[lockcore.Invariant]int
	first  string
}

func (v *invariants) violated(broken lockcore.Invariant, what ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.broken == nil {
		v.broken, v.first = make(map[lockcore.Invariant]int), fmt.Sprint(broken, " ", what)
	}
	v.broken[broken]++
}

// judge reports a broken invariant as a violation, unless the plan has a mutant, which may break invariants
// on purpose.
func (v *invariants) judge(w *world) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.broken != nil && w.plan.Mutant.Name == "" {
		w.check.violatef("invariant", "a server says that an invariant is broken, %v in all: %s", v.broken, v.first)
	}
}
