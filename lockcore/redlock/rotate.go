package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
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
	return l.members.secrets.keys.Load()
}

// unknown says that this server is not in touch with enough nodes to tell
// whether a lease id is the cluster's.
func (l *set) unknown(ctx context.Context) *lockcore.QuorumError {
	status := l.members.status()
	e := &lockcore.QuorumError{Quorum: l.quorum, RetryAfter: retryAfter(status), Cause: ctx.Err()}
	for _, n := range status.Nodes {
		e.Nodes = append(e.Nodes, lockcore.NodeOutcome{Node: n.Name, Reason: cmp.Or(n.Reason, "its secret is not known to a quorum yet")})
	}
	return e
}

// ErrSecretInUse: a lease may live whose id only the secret opens that would go.
var ErrSecretInUse = errors.New("the secret before the present one may be in use")

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
	if _, err := l.currentKeys(ctx); err != nil && l.cfg.Keys == nil {
		return err
	}
	m := l.members
	m.mu.Lock()
	present := m.secrets.all.List()
	p := planFor(&m.seen, m.cfg, time.Now())
	m.mu.Unlock()
	if len(present) == 0 {
		return l.unknown(ctx)
	}
	age := time.Since(time.UnixMilli(int64(present[0].Epoch >> epochBits)))
	if len(present) == node.KeptSecrets && !force && (l.cfg.MaxHold < 0 || age < l.cfg.MaxHold+l.cfg.inTouch()) {
		return fmt.Errorf("%w: the present one was made %s ago, and a lease may be held for longer", ErrSecretInUse, age.Round(time.Second))
	}
	fresh := l.cfg.newSecrets(m.bootstrapEpoch(present[0].Epoch))
	var took atomic.Int64
	m.sideBySide(ctx, p.admitted, func(ctx context.Context, i int) {
		if m.addSecrets(ctx, i, fresh) == nil {
			took.Add(1)
		}
	})
	if took := int(took.Load()); took < l.quorum {
		e := l.unknown(ctx)
		e.Granted = took
		return e
	}
	return nil
}
