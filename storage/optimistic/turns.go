package optimistic

import (
	"context"
	"slices"
)

// awaitTurn waits until the copy has a life and it is this server's turn. While other servers take turns, it
// claims a place among them. late is the server whose turn it is, if it has not committed within Patience.
func (s *Store) awaitTurn(ctx context.Context) (late string, err error) {
	if err := s.live(ctx); err != nil {
		return "", err
	}
	for {
		now, err := s.loaded(ctx)
		turn := now.head.turn()
		switch {
		case err != nil || turn == "" || turn == s.name:
			return "", err
		case !slices.Contains(now.head.turns, s.name) && now.claim == "":
			err = s.claim(ctx)
		}
		if err != nil {
			return "", err
		}
		soon, cancel := context.WithTimeout(ctx, s.opts.Patience)
		_, err = s.mirror.await(soon, func(next *state) bool { return next.loaded && next.rawHead != now.rawHead })
		cancel()
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case err != nil:
			return turn, nil //nolint:nilerr // the patience is over
		}
	}
}

// claim requests a place among the servers that take turns. The next commit of any of them grants it.
func (s *Store) claim(ctx context.Context) error {
	s.claimed = s.name
	return s.service.Claim(ctx, s.name)
}

// turnsAfter returns the other servers that take turns after a commit of this server.
func (s *Store) turnsAfter(on *state, late string) []string {
	turns := slices.Clone(on.head.turns)
	if on.claim != "" && !slices.Contains(turns, on.claim) {
		turns = append(turns, on.claim)
	}
	return slices.DeleteFunc(turns, func(server string) bool { return server == s.name || server == late })
}

// leaveTurns passes this server's turn on whenever it has nothing to commit.
func (s *Store) leaveTurns() {
	var at int64
	for {
		now, err := s.mirror.await(s.ctx, func(now *state) bool {
			return now.loaded && now.headVersion > at && now.head.turn() == s.name
		})
		if err != nil {
			return
		}
		at = now.headVersion
		select {
		case s.writer <- struct{}{}:
			s.leave(&now)
			<-s.writer
		default: // an update is about to commit
		}
	}
}

// leave commits a head in which this server has no turn. The caller is in the writer's slot.
func (s *Store) leave(on *state) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	h := on.head
	h.wakes, h.wakeAll, h.turns = nil, false, s.turnsAfter(on, "")
	if err := s.put(ctx, on, h, nil, nil); err != nil {
		s.opts.Logger.Debug("a turn is not given on: the others wait for it once", "error", err)
	}
}
