package sim

// Mutant names a rule that is switched off; "" is none.
type Mutant string

func (m Mutant) rules(r rules) rules { return r }

func (m Mutant) force() bool { return false }
