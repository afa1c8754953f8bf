package redlock

import (
	"cmp"
	"context"
	"errors"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/membership"
)

// currentKeys gives the keys, the configured ones if there are any. A server that
// has just started has none. The error is a *QuorumError.
func (l *set) currentKeys(ctx context.Context) (*Keys, error) {
	if keys := l.keysNow(); keys != nil {
		return keys, nil
	}
	return nil, l.unknown(ctx)
}

func (l *set) keysNow() *Keys {
	if l.cfg.Keys != nil {
		return l.cfg.Keys()
	}
	return l.keys.Load()
}

// unknown says that this server is not in touch with enough nodes to tell
// whether a lease id is the cluster's.
func (l *set) unknown(ctx context.Context) *lockcore.QuorumError {
	status := l.members.Status()
	e := &lockcore.QuorumError{Quorum: l.quorum, RetryAfter: retryAfter(status), Cause: ctx.Err()}
	for _, n := range status.Nodes {
		e.Nodes = append(e.Nodes, lockcore.NodeOutcome{Node: n.Name, Reason: cmp.Or(n.Reason, "its secret is not known to a quorum yet")})
	}
	return e
}

// RotateSecret gives the nodes a new secret. Servers begin to seal with it within
// seconds; what was sealed with the one before is still opened. The one before
// that goes: if leases of it may live (the present one is younger than
// Config.MaxHold), force has to be true, and their holders are answered ErrNotHeld
// from then on. Errors: ErrSecretInUse, *QuorumError (some nodes may have it, and
// the servers give it to the others; safe to repeat), ctx.Err().
func (l *Locker) RotateSecret(ctx context.Context, force bool) error {
	for _, s := range l.sets {
		if err := s.rotateSecret(ctx, force); err != nil {
			return err
		}
	}
	return nil
}

func (l *set) rotateSecret(ctx context.Context, force bool) error {
	took, err := l.members.RotateSecret(ctx, l.cfg.MaxHold, force)
	switch {
	case errors.Is(err, membership.ErrNoSecret):
		return l.unknown(ctx)
	case err == nil && took < l.quorum:
		e := l.unknown(ctx)
		e.Granted = took
		return e
	}
	return err
}

// takeSecrets makes the keys of the cluster's secrets.
func (l *set) takeSecrets(secrets [][]byte) {
	keys, err := NewKeys(secrets...)
	if err != nil {
		return // two epochs of one secret: no honest node has that
	}
	l.keys.Store(keys)
}
