package access

import (
	"context"
	"net/http"
	"time"
)

// followed is a request that stays open for long.
type followed struct {
	shown credentials
	who   *Identity
	still func(*Identity) error
	end   context.CancelCauseFunc
}

// Follow returns the context of a request of who that stays open for long. It ends
// once a new request with the same credentials would be refused: the file does not
// have them any more, or for another name; a JWT or a certificate has expired; still
// refuses the name by its latest rules. context.Cause is then ErrBadCredentials, or
// the error of still, which must not block. A right that the file no longer gives ends
// it before Load returns. stop has to be called when the request ends.
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
	f.check(k.policy.Load()) // after Load sees it, so that no version is missed
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

// check ends the request if the policy does not let it continue.
func (f *followed) check(p *Policy) {
	now := p.find(&f.shown)
	if now == nil || now.name != f.who.name {
		f.end(ErrBadCredentials)
	} else if err := f.still(now); err != nil {
		f.end(err)
	}
}

// revoke ends the open requests that the policy does not let continue.
func (k *Keeper) revoke(p *Policy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for f := range k.open {
		f.check(p)
	}
}
