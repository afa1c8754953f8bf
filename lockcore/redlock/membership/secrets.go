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

// newSecrets makes the secret of a cluster that is bootstrapped in epoch.
func (c *Controller) newSecrets(epoch node.Epoch) node.Secrets {
	var raw [node.MinSecretBytes]byte
	c.cfg.Random.Fill(raw[:])
	return node.NewSecrets(epoch, raw)
}

// knownSecrets is what a server knows of its cluster's secrets.
type knownSecrets struct {
	all     node.Secrets
	sealing node.Epoch               // the epoch of the secret that seals
	since   map[node.Epoch]time.Time // since when a quorum has been seen to have a secret
}

// adoptSecrets adopts the secrets that the nodes keep, as last seen; c.mu is held.
//
// A secret that one admitted node has opens lease ids: another server may seal
// with it. See sealingSecret for the one that seals.
func (c *Controller) adoptSecrets(now time.Time) {
	kept := c.seen.keptSecrets()
	all := node.MergeSecrets(kept...)
	c.secrets.noteHolders(all, kept, quorum.Of(len(c.nodes)), now)
	sealing, ok := c.secrets.sealingSecret(all, now, c.cfg.inTouch())
	if !ok || all == c.secrets.all && sealing.Epoch == c.secrets.sealing {
		return
	}
	c.secrets.all, c.secrets.sealing = all, sealing.Epoch
	raw := [][]byte{sealing.Raw[:]}
	for _, s := range all.List() {
		if s != sealing {
			raw = append(raw, s.Raw[:])
		}
	}
	c.cfg.Secrets(raw)
}

// noteHolders notes since when a quorum has been seen to have each secret.
func (k *knownSecrets) noteHolders(all node.Secrets, kept []node.Secrets, quorum int, now time.Time) {
	since := make(map[node.Epoch]time.Time, node.KeptSecrets)
	for _, s := range all.List() {
		holders := 0
		for _, one := range kept {
			if one.Has(s) {
				holders++
			}
		}
		if holders < quorum {
			continue
		}
		since[s.Epoch] = now
		if before, ok := k.since[s.Epoch]; ok {
			since[s.Epoch] = before
		}
	}
	k.since = since
}

// sealingSecret is the newest secret that a quorum has had for as long as a server
// in touch with a quorum may take to see that: then no other server refuses the id,
// and a rejoining node reads the secret from any R nodes. If there is none so old,
// it is the oldest that a quorum has.
func (k *knownSecrets) sealingSecret(all node.Secrets, now time.Time, inTouch time.Duration) (sealing node.Secret, ok bool) {
	for _, s := range all.List() { // the newest first
		since, held := k.since[s.Epoch]
		if !held {
			continue
		}
		if sealing, ok = s, true; now.Sub(since) >= inTouch {
			break
		}
	}
	return sealing, ok
}

// inTouch is the longest age of what a server knows of a quorum, for what the nodes
// know now.
func (c Config) inTouch() time.Duration { return 4 * (c.WatchInterval + c.observeTimeout()) }

// UpToDate reports whether a quorum of admitted nodes was seen lately.
func (c *Controller) UpToDate() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	voting := 0
	for i := range c.seen.nodes {
		if s := &c.seen.nodes[i]; s.admitted() && time.Since(s.at) < c.cfg.inTouch() {
			voting++
		}
	}
	return voting >= quorum.Of(len(c.nodes))
}

// addSecrets has node i keep these secrets, too, where they are newer than its own.
func (c *Controller) addSecrets(ctx context.Context, i int, secrets node.Secrets) error {
	const tries = 3 // another server may be doing the same
	for try := 1; ; try++ {
		seen, err := c.nodes[i].Observe(ctx)
		switch {
		case err != nil:
			return err
		case !seen.Admitted:
			return node.ErrNotAdmitted
		}
		had := seen.Marks.Secrets
		if err = c.nodes[i].ReplaceSecrets(ctx, had, node.MergeSecrets(had, secrets)); !errors.Is(err, node.ErrRaced) || try == tries {
			return err
		}
	}
}

// Secrets are the cluster's, as far as they are known.
func (c *Controller) Secrets() node.Secrets {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secrets.all
}

// AddSecrets has a quorum keep these secrets, too.
func (c *Controller) AddSecrets(ctx context.Context, secrets node.Secrets) error {
	c.mu.Lock()
	p := c.plan(time.Now())
	c.mu.Unlock()
	return c.onQuorum(ctx, p.admitted, "took the secret", func(ctx context.Context, i int) error {
		return c.addSecrets(ctx, i, secrets)
	})
}

// Errors of RotateSecret.
var (
	// ErrSecretInUse: a lease may live whose id only the secret before the present one opens.
	ErrSecretInUse = errors.New("the secret before the present one may be in use")
	// ErrNoSecret: no quorum has shown its secret yet.
	ErrNoSecret = errors.New("the cluster's secret is not known to a quorum yet")
)

// RotateSecret gives the nodes a new secret and returns how many took it. The
// servers give it to the others. The secret before the present one is deleted. While
// a lease of it may live (the present one is younger than maxHold, or maxHold is
// 0 for no bound), force has to be true. Errors: ErrSecretInUse, ErrNoSecret.
func (c *Controller) RotateSecret(ctx context.Context, maxHold time.Duration, force bool) (took int, err error) {
	c.mu.Lock()
	present := c.secrets.all.List()
	p := c.plan(time.Now())
	c.mu.Unlock()
	if len(present) == 0 {
		return 0, ErrNoSecret
	}
	age := time.Since(time.UnixMilli(int64(present[0].Epoch >> epochBits)))
	if len(present) == node.KeptSecrets && !force && (maxHold <= 0 || age < maxHold+c.cfg.inTouch()) {
		return 0, fmt.Errorf("%w: the present one was made %s ago, and a lease may be held for longer", ErrSecretInUse, age.Round(time.Second))
	}
	fresh := c.newSecrets(c.bootstrapEpoch(present[0].Epoch))
	var n atomic.Int64
	c.forEach(ctx, p.admitted, func(ctx context.Context, i int) {
		if c.addSecrets(ctx, i, fresh) == nil {
			n.Add(1)
		}
	})
	return int(n.Load()), nil
}
