package redlock

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// newSecrets draws the secret of a cluster that is bootstrapped in epoch.
func (c Config) newSecrets(epoch node.Epoch) node.Secrets {
	var raw [node.MinSecretBytes]byte
	c.Random.Fill(raw[:])
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
