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
// once a new request with the same credentials would not be let in: the file does
// not name them any more, or names somebody else; a JWT or a certificate is past its
// end; still refuses the name by its latest rules. context.Cause is then
// ErrBadCredentials, or the error of still, which must not block. Rights that are
// taken away with the file end it before Load returns. stop has to be called when
// the request is over.
func (k *Keeper) Follow(r *http.Request, who *Identity, still func(*Identity) error) (ctx context.Context, stop func()) {
	ctx, end := context.WithCancelCause(r.Context())
	shown, err := k.shown(r)
	if err != nil { // it ended just now
		end(err)
		return ctx, func() {}
	}
	f := &followed{shown: shown, who: who, still: still, end: end}
	k.mu.Lock()
	k.open[f] = struct{}{}
	k.mu.Unlock()
	f.check(k.policy.Load()) // after it is known to Load, so that no version is missed
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

// check ends the request if the policy does not let it go on.
func (f *followed) check(p *Policy) {
	now := p.find(&f.shown)
	if now == nil || now.name != f.who.name {
		f.end(ErrBadCredentials)
	} else if err := f.still(now); err != nil {
		f.end(err)
	}
}

// revoke ends what is open of callers that the policy locks out.
func (k *Keeper) revoke(p *Policy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for f := range k.open {
		f.check(p)
	}
}
