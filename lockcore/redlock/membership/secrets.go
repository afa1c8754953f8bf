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

// errNoSecretsYet: the secrets with which the set is bootstrapped are not known yet.
var errNoSecretsYet = errors.New("the secrets of the node set that this one replaces are not known yet")

// firstSecrets returns the secrets of a cluster that is bootstrapped in epoch.
func (c *Controller) firstSecrets(epoch node.Epoch) (node.Secrets, error) {
	if c.cfg.NewSecrets == nil {
		return c.newSecrets(epoch), nil
	}
	switch secrets, known := c.cfg.NewSecrets(); {
	case !known:
		return "", errNoSecretsYet
	case secrets != "":
		return secrets, nil
	}
	return c.newSecrets(epoch), nil
}

// newSecrets makes a random secret for epoch.
func (c *Controller) newSecrets(epoch node.Epoch) node.Secrets {
	var raw [node.MinSecretBytes]byte
	c.cfg.Random.Fill(raw[:])
	return node.NewSecrets(epoch, raw)
}

// knownSecrets is a server's knowledge of its cluster's secrets.
type knownSecrets struct {
	all     node.Secrets
	shown   bool                     // a quorum shows a secret, as last seen
	sealing node.Epoch               // the epoch of the secret that seals
	since   map[node.Epoch]time.Time // by secret: since when a quorum has been seen to have it
}

// adoptSecrets adopts the secrets that the nodes showed last. The caller holds c.mu.
//
// A secret on a single admitted node already opens lease ids, because another server may seal with it.
// sealingSecret chooses the secret that seals.
func (c *Controller) adoptSecrets(now time.Time) {
	kept, epoch := c.seen.keptSecrets()
	all := node.MergeSecrets(kept...)
	c.secrets.noteHolders(all, kept, quorum.Of(len(c.nodes)), now)
	sealing, ok := c.secrets.sealingSecret(all, now, c.cfg.inTouch())
	if c.secrets.shown = ok; !ok {
		return
	}
	if all != c.secrets.all || sealing.Epoch != c.secrets.sealing {
		c.useSecrets(all, sealing)
	}
	c.keyed.Store(int64(epoch))
}

func (c *Controller) useSecrets(all node.Secrets, sealing node.Secret) {
	c.secrets.all, c.secrets.sealing = all, sealing.Epoch
	raw := [][]byte{sealing.Raw[:]}
	for _, s := range all.List() {
		if s != sealing {
			raw = append(raw, s.Raw[:])
		}
	}
	c.cfg.Secrets(raw)
}

// noteHolders records since when a quorum has been seen to have each secret.
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

// sealingSecret returns the newest secret that a quorum has had for as long as a server in touch with a quorum
// may take to see it. Then no other server refuses the id, and a rejoining node reads the secret from any R
// nodes. If no secret is that old, it returns the oldest that a quorum has.
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

// inTouch is the maximum age of a server's knowledge of the nodes' state, while it is in touch with a quorum.
func (c Config) inTouch() time.Duration { return 4 * (c.WatchInterval + c.observeTimeout()) }

// ReadSecrets observes the nodes until a quorum shows its present secrets. It returns false if no quorum
// shows any. Concurrent calls share the observations, and each node is observed at most ten times in an
// interval.
func (c *Controller) ReadSecrets(ctx context.Context) bool {
	return c.await(ctx, func(quorate bool) bool { return quorate && c.secrets.shown })
}

// await makes the nodes be observed until done returns true. done gets whether a quorum was observed since the
// call began, and is called with c.mu held. await gives up after every node was observed.
func (c *Controller) await(ctx context.Context, done func(quorate bool) bool) bool {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.WatchInterval+c.cfg.observeTimeout())
	defer cancel()
	began := c.looks.Load()
	c.nudgeAll()
	c.mu.Lock()
	place := c.awaiting.enter()
	c.mu.Unlock()
	is := c.awaitObservations(ctx, began, done)
	// Staggered: if all queried the nodes at once, simulated runs would not be repeatable.
	time.Sleep(time.Duration(place) * time.Microsecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.awaiting.leave()
	return is
}

func (c *Controller) awaitObservations(ctx context.Context, began int64, done func(quorate bool) bool) bool {
	for {
		c.mu.Lock()
		all, quorate := c.seen.observedSince(began)
		is, changed := done(quorate), c.changed
		c.mu.Unlock()
		if is || all {
			return is
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// arrivals numbers the waiting callers, from 1. When none waits any more, it starts again.
type arrivals struct{ waiting, last int }

func (a *arrivals) enter() (place int) {
	a.waiting++
	a.last++
	return a.last
}

func (a *arrivals) leave() {
	if a.waiting--; a.waiting == 0 {
		a.last = 0
	}
}

// addSecrets makes node i also keep these secrets, if they are newer than its own.
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

// Secrets returns the cluster's secrets, as far as they are known.
func (c *Controller) Secrets() node.Secrets {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.secrets.all
}

// AddSecrets makes a quorum also keep these secrets.
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
	// ErrSecretInUse: a lease may be alive whose id only the previous secret opens.
	ErrSecretInUse = errors.New("the previous secret may still be in use")
	// ErrNoSecret: no quorum has shown its secret yet.
	ErrNoSecret = errors.New("the cluster's secret is not known to a quorum yet")
)

// RotateSecret gives the nodes a new secret and returns how many stored it. The servers copy it to the others.
// The previous secret is deleted. While a lease sealed with it may be alive (the present secret is younger
// than maxHold, or maxHold is 0 for no bound), force must be true. If an earlier rotation reached fewer than a
// quorum, this call completes that one instead, and deletes nothing. Errors: ErrSecretInUse, ErrNoSecret.
func (c *Controller) RotateSecret(ctx context.Context, maxHold time.Duration, force bool) (took int, err error) {
	finished := false // whether a quorum has the newest secret
	c.mu.Lock()
	all, present := c.secrets.all, c.secrets.all.List()
	p := c.plan(time.Now())
	if len(present) > 0 {
		_, finished = c.secrets.since[present[0].Epoch]
	}
	c.mu.Unlock()
	switch {
	case len(present) == 0:
		return 0, ErrNoSecret
	case !finished:
		return c.giveSecrets(ctx, p, all), nil
	}
	age := time.Since(time.UnixMilli(int64(present[0].Epoch >> epochBits)))
	if len(present) == node.KeptSecrets && !force && (maxHold <= 0 || age < maxHold+c.cfg.inTouch()) {
		return 0, fmt.Errorf("%w: the present one was made %s ago, and a lease may be held for longer", ErrSecretInUse, age.Round(time.Second))
	}
	return c.giveSecrets(ctx, p, c.newSecrets(c.bootstrapEpoch(present[0].Epoch))), nil
}

// giveSecrets returns how many nodes stored the secrets.
func (c *Controller) giveSecrets(ctx context.Context, p plan, secrets node.Secrets) int {
	var n atomic.Int64
	c.forEach(ctx, p.admitted, func(ctx context.Context, i int) {
		if c.addSecrets(ctx, i, secrets) == nil {
			n.Add(1)
		}
	})
	return int(n.Load())
}
