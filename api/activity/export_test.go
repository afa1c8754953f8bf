package activity

// Kept is how many resources are remembered.
func (l *Log) Kept() (n int) {
	for _, p := range l.periods {
		n += len(p.contended) + len(p.held)
	}
	return n
}
