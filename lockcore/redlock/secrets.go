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

// newSecrets draws the secret of a cluster that is bootstrapped in epoch.
func (c Config) newSecrets(epoch node.Epoch) node.Secrets {
	var raw [node.MinSecretBytes]byte
	c.random(raw[:])
	return node.NewSecrets(epoch, raw)
}

// knownSecrets is what a server knows of its cluster's secrets.
type knownSecrets struct {
	keys atomic.Pointer[Keys] // that it uses; nil before it knows any

	// The rest is guarded by membership.mu.
	all     node.Secrets
	sealing node.Epoch               // the epoch of the secret that seals
	since   map[node.Epoch]time.Time // since when a quorum has been seen to have a secret
}

// adopt learns from what the nodes keep, as last seen; m.mu is held.
//
// A secret that one admitted node has opens lease ids: another server may seal
// with it. It seals once a quorum has had it for as long as a server that is in
// touch with a quorum may take to see that: then no other server refuses the id,
// and a rejoining node reads the secret from whichever R nodes there are.
func (m *membership) adoptSecrets(now time.Time) {
	kept := m.seen.secrets()
	known := &m.secrets
	all := node.MergeSecrets(kept...)
	var sealing *node.Secret
	since := make(map[node.Epoch]time.Time, node.KeptSecrets)
	for _, s := range all.List() { // the newest first
		holders := 0
		for _, k := range kept {
			if k.Has(s) {
				holders++
			}
		}
		if holders < QuorumOf(len(m.nodes)) {
			continue
		}
		from, ok := known.since[s.Epoch]
		if !ok {
			from = now
		}
		since[s.Epoch] = from
		if sealing == nil || now.Sub(since[sealing.Epoch]) < m.cfg.inTouch() {
			sealing = &s
		}
	}
	if known.since = since; sealing == nil || all == known.all && sealing.Epoch == known.sealing {
		return
	}
	known.all, known.sealing = all, sealing.Epoch
	raw := [][]byte{sealing.Raw[:]}
	for _, s := range all.List() {
		if s != *sealing {
			raw = append(raw, s.Raw[:])
		}
	}
	keys, err := NewKeys(raw...)
	if err != nil {
		return // two epochs of one secret: no honest node has that
	}
	known.keys.Store(keys)
}

// inTouch is how old what a server knows of a quorum may be, so that it speaks
// for what the nodes know now.
func (c Config) inTouch() time.Duration { return 4 * (c.WatchInterval + c.observeTimeout()) }

// uptodate: a quorum of admitted nodes was seen lately.
func (m *membership) uptodate() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	voting := 0
	for i := range m.seen.nodes {
		if s := &m.seen.nodes[i]; s.admitted() && time.Since(s.at) < m.cfg.inTouch() {
			voting++
		}
	}
	return voting >= QuorumOf(len(m.nodes))
}

// raiseSecrets has node i keep these secrets, too, where they are newer than its own.
func (m *membership) raiseSecrets(ctx context.Context, i int, secrets node.Secrets) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if err := m.addSecrets(calling, i, secrets); err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("a node did not take the cluster's secret", "node", m.nodes[i].Name(), "error", err)
	}
}

func (m *membership) addSecrets(ctx context.Context, i int, secrets node.Secrets) error {
	const tries = 3 // somebody else may be doing the same
	for try := 1; ; try++ {
		seen, err := m.nodes[i].Observe(ctx)
		switch {
		case err != nil:
			return err
		case !seen.Admitted:
			return node.ErrNotAdmitted
		}
		had := seen.Marks.Secrets
		if err = m.nodes[i].ReplaceSecrets(ctx, had, node.MergeSecrets(had, secrets)); !errors.Is(err, node.ErrRaced) || try == tries {
			return err
		}
	}
}

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
