package membership

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// newSecrets draws the secret of a cluster that is bootstrapped in epoch.
func (m *Controller) newSecrets(epoch node.Epoch) node.Secrets {
	var raw [node.MinSecretBytes]byte
	m.cfg.Random.Fill(raw[:])
	return node.NewSecrets(epoch, raw)
}

// knownSecrets is what a server knows of its cluster's secrets.
type knownSecrets struct {
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
func (m *Controller) adoptSecrets(now time.Time) {
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
		if holders < quorum.Of(len(m.nodes)) {
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
	m.cfg.Secrets(raw)
}

// inTouch is how old what a server knows of a quorum may be, so that it speaks
// for what the nodes know now.
func (c Config) inTouch() time.Duration { return 4 * (c.WatchInterval + c.observeTimeout()) }

// UpToDate reports whether a quorum of admitted nodes was seen lately.
func (m *Controller) UpToDate() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	voting := 0
	for i := range m.seen.nodes {
		if s := &m.seen.nodes[i]; s.admitted() && time.Since(s.at) < m.cfg.inTouch() {
			voting++
		}
	}
	return voting >= quorum.Of(len(m.nodes))
}

// raiseSecrets has node i keep these secrets, too, where they are newer than its own.
func (m *Controller) raiseSecrets(ctx context.Context, i int, secrets node.Secrets) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if err := m.addSecrets(calling, i, secrets); err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("a node did not take the cluster's secret", "node", m.nodes[i].Name(), "error", err)
	}
}

func (m *Controller) addSecrets(ctx context.Context, i int, secrets node.Secrets) error {
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

// Errors of RotateSecret.
var (
	// ErrSecretInUse: a lease may live whose id only the secret opens that would go.
	ErrSecretInUse = errors.New("the secret before the present one may be in use")
	// ErrNoSecret: no quorum has shown its secret yet.
	ErrNoSecret = errors.New("the cluster's secret is not known to a quorum yet")
)

// RotateSecret gives the nodes a new secret and returns how many took it. The
// servers give it to the others. The secret before the present one goes: while a
// lease of it may live (the present one is younger than maxHold, or maxHold is 0 for no
// bound), force has to be true. Errors: ErrSecretInUse, ErrNoSecret.
func (m *Controller) RotateSecret(ctx context.Context, maxHold time.Duration, force bool) (took int, err error) {
	m.mu.Lock()
	present := m.secrets.all.List()
	p := planFor(&m.seen, m.cfg, time.Now())
	m.mu.Unlock()
	if len(present) == 0 {
		return 0, ErrNoSecret
	}
	age := time.Since(time.UnixMilli(int64(present[0].Epoch >> epochBits)))
	if len(present) == node.KeptSecrets && !force && (maxHold <= 0 || age < maxHold+m.cfg.inTouch()) {
		return 0, fmt.Errorf("%w: the present one was made %s ago, and a lease may be held for longer", ErrSecretInUse, age.Round(time.Second))
	}
	fresh := m.newSecrets(m.bootstrapEpoch(present[0].Epoch))
	var n atomic.Int64
	m.ForEach(ctx, p.admitted, func(ctx context.Context, i int) {
		if m.addSecrets(ctx, i, fresh) == nil {
			n.Add(1)
		}
	})
	return int(n.Load()), nil
}
