package redlock

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// currentKeys returns the configured keys, or else those of the cluster's secrets,
// which a server that has just started does not know yet. The error is a *QuorumError.
func (s *set) currentKeys(ctx context.Context) (*Keys, error) {
	_, keys, err := s.voting(ctx)
	return keys, err
}

// voting returns the epoch in which to ask for votes, and keys that are at least as new
// (rule 24). The error is a *QuorumError.
func (s *set) voting(ctx context.Context) (node.Epoch, *Keys, error) {
	epoch, known := s.members.Epoch(), true
	if s.cfg.Keys == nil {
		epoch, known = s.members.VotingEpoch(ctx)
	}
	if keys := s.keysNow(); known && keys != nil {
		return epoch, keys, nil
	}
	return 0, nil, s.unready(ctx, noSecret)
}

func (s *set) keysNow() *Keys {
	if s.cfg.Keys != nil {
		return s.cfg.Keys()
	}
	return s.keys.Load()
}

// readKeys reads the keys that a quorum has now. Configured keys are always known.
func (s *set) readKeys(ctx context.Context) error {
	if s.cfg.Keys == nil && !s.members.ReadSecrets(ctx) || s.keysNow() == nil {
		return s.unready(ctx, noSecret)
	}
	return nil
}

// noSecret is the reason of a node that votes.
const noSecret = "its secret is not known to a quorum yet"

// RotateSecret gives the nodes a new secret. Servers begin to seal with it within
// seconds, and still open what the present one sealed. The secret before the
// present one is deleted. If leases of it may live (the present one is younger than
// Config.MaxHold), force has to be true: their holders get ErrNotHeld from then on.
// Errors: ErrSecretInUse, *QuorumError (some nodes may have it, and the servers give
// it to the others; safe to repeat), ctx.Err().
func (l *Locker) RotateSecret(ctx context.Context, force bool) error {
	for _, s := range l.sets {
		if err := s.rotateSecret(ctx, force); err != nil {
			return err
		}
	}
	return nil
}

func (s *set) rotateSecret(ctx context.Context, force bool) error {
	took, err := s.members.RotateSecret(ctx, s.cfg.MaxHold, force)
	switch {
	case errors.Is(err, membership.ErrNoSecret):
		return s.unready(ctx, noSecret)
	case err == nil && took < s.quorum:
		e := s.unready(ctx, "it may not have taken the new secret in time")
		e.Granted = took
		return e
	}
	return err
}

// takeSecrets makes the keys of the cluster's secrets.
func (s *set) takeSecrets(secrets [][]byte) {
	keys, err := NewKeys(secrets...)
	if err != nil {
		return // one secret in two epochs: no correct node has that
	}
	s.keys.Store(keys)
}
