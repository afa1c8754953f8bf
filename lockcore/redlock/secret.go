package redlock

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// CurrentRing returns the configured keys, or else those of the cluster's secrets,
// which a server that has just started does not know yet. The error is a *QuorumError.
func (l *Locker) CurrentRing(ctx context.Context) (*keyring.Ring, error) {
	_, keys, err := l.voting(ctx)
	return keys, err
}

// voting returns the epoch in which to ask for votes, and keys that are at least as new
// (rule 24). The error is a *QuorumError.
func (l *Locker) voting(ctx context.Context) (node.Epoch, *keyring.Ring, error) {
	epoch, known := l.members.Epoch(), true
	if l.cfg.Keys == nil {
		epoch, known = l.members.VotingEpoch(ctx)
	}
	if keys := l.Ring(); known && keys != nil {
		return epoch, keys, nil
	}
	return 0, nil, l.Unready(ctx, noSecret)
}

// Ring is the keys that are known now; nil before a quorum has shown the cluster's secret.
func (l *Locker) Ring() *keyring.Ring {
	if l.cfg.Keys != nil {
		return l.cfg.Keys()
	}
	return l.ring.Load()
}

// ReadRing reads the keys that a quorum has now. Configured keys are always known.
func (l *Locker) ReadRing(ctx context.Context) error {
	if l.cfg.Keys == nil && !l.members.ReadSecrets(ctx) || l.Ring() == nil {
		return l.Unready(ctx, noSecret)
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
	took, err := l.members.RotateSecret(ctx, l.cfg.MaxHold, force)
	switch {
	case errors.Is(err, membership.ErrNoSecret):
		return l.Unready(ctx, noSecret)
	case err == nil && took < l.quorum:
		e := l.Unready(ctx, "it may not have taken the new secret in time")
		e.Granted = took
		return e
	}
	return err
}

// takeSecrets makes the keys of the cluster's secrets.
func (l *Locker) takeSecrets(secrets [][]byte) {
	keys, err := keyring.New(secrets...)
	if err != nil {
		return // one secret in two epochs: no correct node has that
	}
	l.ring.Store(keys)
}
