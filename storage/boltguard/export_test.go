package boltguard

// Waiting returns how many operations wait for the next commit, and whether another commit is under way.
func (g *Guard) Waiting() (n int, committing bool) {
	g.commits.mu.Lock()
	defer g.commits.mu.Unlock()
	return len(g.commits.waiting), g.commits.leading
}
