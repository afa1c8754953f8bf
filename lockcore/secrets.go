package lockcore

import (
	"cmp"
	"context"
	"crypto/hmac"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// Secrets are a cluster's secrets as its nodes keep them, with the admission
// record: the newest first, "" for none. To a node they are a text. Every
// bootstrap draws a secret, and 'fencelock secret rotate' another one, which
// replaces it while the one before still opens lease ids. What Secrets print
// are the ids of their keys, which are public.
type Secrets string

// keptSecrets is how many a node keeps: the present one and the one before.
const keptSecrets = 2

// secret is one of them. A larger epoch is newer; it is made as an epoch is at
// a bootstrap, of the clock and some chance, so that no two are the same.
type secret struct {
	epoch View
	raw   [MinSecretBytes]byte
}

// newSecrets draws the secret of a cluster that is bootstrapped in view.
func (c Config) newSecrets(view View) Secrets {
	s := secret{epoch: view}
	c.random(s.raw[:])
	return secretsOf([]secret{s})
}

// NewSecrets are the secrets of a node that bootstraps itself in view, of
// MinSecretBytes random bytes.
func NewSecrets(view View, random [MinSecretBytes]byte) Secrets {
	return secretsOf([]secret{{epoch: view, raw: random}})
}

func secretsOf(list []secret) Secrets {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = strconv.FormatInt(int64(s.epoch), 10) + ":" + hex.EncodeToString(s.raw[:])
	}
	return Secrets(strings.Join(texts, ","))
}

// list reads the text. What is broken in it is no secret.
func (s Secrets) list() (list []secret) {
	for text := range strings.SplitSeq(string(s), ",") {
		epoch, raw, _ := strings.Cut(text, ":")
		n, err := strconv.ParseInt(epoch, 10, 64)
		bytes, errRaw := hex.DecodeString(raw)
		if err == nil && errRaw == nil && n > 0 && View(n) <= mostView && len(bytes) == MinSecretBytes {
			list = append(list, secret{epoch: View(n), raw: [MinSecretBytes]byte(bytes)})
		}
	}
	return list
}

// String shows the ids of the keys, and no secret.
func (s Secrets) String() string {
	var ids []string
	for _, one := range s.list() {
		ids = append(ids, hex.EncodeToString(subkey(one.raw[:], "key id")[:keyIDBytes]))
	}
	return "secrets(" + strings.Join(ids, ",") + ")"
}

// GoString is String.
func (s Secrets) GoString() string { return s.String() }

// MarshalText is String, for logs in JSON.
func (s Secrets) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// mergeSecrets keeps the newest of all. However often and in whatever order
// nodes' secrets are merged, the same come out.
func mergeSecrets(of ...Secrets) Secrets {
	var all []secret
	for _, s := range of {
		all = append(all, s.list()...)
	}
	slices.SortFunc(all, func(a, b secret) int {
		return cmp.Or(-cmp.Compare(a.epoch, b.epoch), slices.Compare(b.raw[:], a.raw[:]))
	})
	all = slices.Compact(all)
	return secretsOf(all[:min(len(all), keptSecrets)])
}

// has reports whether the node that keeps s has this one.
func (s Secrets) has(one secret) bool {
	return slices.ContainsFunc(s.list(), func(other secret) bool {
		return other.epoch == one.epoch && hmac.Equal(other.raw[:], one.raw[:])
	})
}

// knownSecrets is what a server knows of its cluster's secrets.
type knownSecrets struct {
	keys atomic.Pointer[Keys] // that it uses; nil before it knows any

	// The rest is guarded by membership.mu.
	all     Secrets
	sealing View               // the epoch of the secret that seals
	since   map[View]time.Time // since when a quorum has been seen to have a secret
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
	all := mergeSecrets(kept...)
	var sealing *secret
	since := make(map[View]time.Time, keptSecrets)
	for _, s := range all.list() { // the newest first
		holders := 0
		for _, k := range kept {
			if k.has(s) {
				holders++
			}
		}
		if holders < QuorumOf(len(m.nodes)) {
			continue
		}
		from, ok := known.since[s.epoch]
		if !ok {
			from = now
		}
		since[s.epoch] = from
		if sealing == nil || now.Sub(since[sealing.epoch]) < m.cfg.inTouch() {
			sealing = &s
		}
	}
	if known.since = since; sealing == nil || all == known.all && sealing.epoch == known.sealing {
		return
	}
	known.all, known.sealing = all, sealing.epoch
	raw := [][]byte{sealing.raw[:]}
	for _, s := range all.list() {
		if s != *sealing {
			raw = append(raw, s.raw[:])
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
	for i := range m.seen.sights {
		if s := &m.seen.sights[i]; s.admitted() && time.Since(s.at) < m.cfg.inTouch() {
			voting++
		}
	}
	return voting >= QuorumOf(len(m.nodes))
}

// raiseSecrets has node i keep these secrets, too, where they are newer than its own.
func (m *membership) raiseSecrets(ctx context.Context, i int, secrets Secrets) {
	calling, cancel := context.WithTimeout(ctx, m.cfg.observeTimeout())
	defer cancel()
	if err := m.addSecrets(calling, i, secrets); err != nil && ctx.Err() == nil {
		m.cfg.Logger.Warn("a node did not take the cluster's secret", "node", m.nodes[i].Name(), "error", err)
	}
}

func (m *membership) addSecrets(ctx context.Context, i int, secrets Secrets) error {
	const tries = 3 // somebody else may be doing the same
	for try := 1; ; try++ {
		seen, err := m.nodes[i].Observe(ctx)
		switch {
		case err != nil:
			return err
		case !seen.Admitted:
			return ErrNotAdmitted
		}
		had := seen.Marks.Secrets
		if err = m.nodes[i].ReplaceSecrets(ctx, had, mergeSecrets(had, secrets)); !errors.Is(err, ErrRaced) || try == tries {
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
func (l *set) unknown(ctx context.Context) *QuorumError {
	status := l.members.status()
	e := &QuorumError{Quorum: l.quorum, RetryAfter: status.retryAfter(), Cause: ctx.Err()}
	for _, n := range status.Nodes {
		e.Nodes = append(e.Nodes, NodeOutcome{Node: n.Name, Reason: cmp.Or(n.Reason, "its secret is not known to a quorum yet")})
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
	present := m.secrets.all.list()
	p := planFor(&m.seen, m.cfg, time.Now())
	m.mu.Unlock()
	if len(present) == 0 {
		return l.unknown(ctx)
	}
	age := time.Since(time.UnixMilli(int64(present[0].epoch >> viewBits)))
	if len(present) == keptSecrets && !force && (l.cfg.MaxHold < 0 || age < l.cfg.MaxHold+l.cfg.inTouch()) {
		return fmt.Errorf("%w: the present one was made %s ago, and a lease may be held for longer", ErrSecretInUse, age.Round(time.Second))
	}
	fresh := l.cfg.newSecrets(m.foundingView(present[0].epoch))
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
