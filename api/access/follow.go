package access

import (
	"context"
	"net/http"
	"time"
)

// followed is a long-lived request.
type followed struct {
	shown credentials
	who   *Identity
	still func(*Identity) error
	end   context.CancelCauseFunc
}

// Follow returns a context for a long-lived request of who. The context ends when a new request with the same
// credentials would be refused. This is the case if the file no longer has the credentials, or has them under
// another name; if a JWT or a certificate has expired; or if still refuses the name under its latest rules.
// Then context.Cause is ErrBadCredentials, or the error of still, which must not block. If the file no longer
// gives a right, the context ends before Load returns. Call stop when the request ends.
func (k *Keeper) Follow(r *http.Request, who *Identity, still func(*Identity) error) (ctx context.Context, stop func()) {
	ctx, end := context.WithCancelCause(r.Context())
	shown, err := k.shown(r)
	if err != nil { // the credentials expired just now
		end(err)
		return ctx, func() {}
	}
	f := &followed{shown: shown, who: who, still: still, end: end}
	k.mu.Lock()
	k.open[f] = struct{}{}
	k.mu.Unlock()
	f.check(k.policy.Load()) // after Load can see it, so that no version is missed
	expired := func() bool { return true }
	if !shown.ends.IsZero() {
		expired = time.AfterFunc(time.Until(shown.ends), func() { end(ErrBadCredentials) }).Stop
	}
	return ctx, func() {
		expired()
		k.mu.Lock()
		delete(k.open, f)
		k.mu.Unlock()
		end(nil)
	}
}

// check ends the request if the policy no longer permits it.
func (f *followed) check(p *Policy) {
	now := p.find(&f.shown)
	if now == nil || now.name != f.who.name {
		f.end(ErrBadCredentials)
	} else if err := f.still(now); err != nil {
		f.end(err)
	}
}

// revoke ends the open requests that the policy no longer permits.
func (k *Keeper) revoke(p *Policy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for f := range k.open {
		f.check(p)
	}
}
