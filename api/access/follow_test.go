package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// fileOf is an access file of a test, and its keeper.
type fileOf struct {
	*Keeper
	t    *testing.T
	path string
}

func newFile(t *testing.T, verifier Verifier, text string) *fileOf {
	t.Helper()
	f := &fileOf{t: t, path: filepath.Join(t.TempDir(), "access")}
	f.write(text)
	keeper, err := Open(f.path, verifier)
	if err != nil {
		t.Fatal(err)
	}
	f.Keeper = keeper
	return f
}

func (f *fileOf) write(text string) {
	f.t.Helper()
	if err := os.WriteFile(f.path, []byte(text+"\nend\n"), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fileOf) change(text string) {
	f.t.Helper()
	f.write(text)
	if err := f.Load(); err != nil {
		f.t.Fatal(err)
	}
}

func withBearer(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

func withCertificate(name string, ends time.Time) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	leaf := &x509.Certificate{DNSNames: []string{name}, NotAfter: ends}
	authority := &x509.Certificate{NotAfter: time.Now().Add(1000 * time.Hour)}
	r.TLS = &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{leaf, authority}}}
	return r
}

var errNotAny = errors.New("the right is gone")

// follow follows the request for as long as its sender may acquire x.
func (f *fileOf) follow(r *http.Request) (context.Context, func()) {
	f.t.Helper()
	who, err := f.Identify(r)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.Follow(r, who, func(now *Identity) error {
		if now.May(Acquire, "x") {
			return nil
		}
		return errNotAny
	})
}

func TestWhatIsOpenEndsWithItsRights(t *testing.T) {
	i := newIssuer(t)
	v := i.verifier("sub")
	other := "other token=" + tokenHash("o") + " acquire=*\n"
	before := other + "w token=" + tokenHash("s") + " jwt=ci cert=c acquire=*"
	for name, c := range map[string]struct {
		after string
		ended error
	}{
		"nothing that matters":  {before + " read=y requests=1", nil},
		"the name":              {other, ErrBadCredentials},
		"the credentials":       {other + "w token=" + tokenHash("t") + " jwt=cd cert=d acquire=*", ErrBadCredentials},
		"whose credentials":     {other + "v token=" + tokenHash("s") + " jwt=ci cert=c acquire=*", ErrBadCredentials},
		"the right":             {other + "w token=" + tokenHash("s") + " jwt=ci cert=c acquire=* none=x", errNotAny},
		"the file, to nonsense": {"nonsense", nil},
	} {
		for how, request := range map[string]*http.Request{
			"token": withBearer("s"), "jwt": withBearer(i.token(jose.RS256, i.key, nil)), "certificate": withCertificate("c", time.Now().Add(time.Hour)),
		} {
			f := newFile(t, v, before)
			ctx, stop := f.follow(request)
			others, stopOther := f.follow(withBearer("o"))
			f.write(c.after)
			if err := f.Load(); (err == nil) == (c.after == "nonsense") {
				t.Fatal(err)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, c.ended) || c.ended == nil && cause != nil {
				t.Errorf("%s changed, %s: %v, want %v", name, how, cause, c.ended)
			}
			if others.Err() != nil {
				t.Errorf("%s changed, %s: another caller's request ended: %v", name, how, context.Cause(others))
			}
			stop()
			stopOther()
			if len(f.open) != 0 {
				t.Errorf("%d are followed after their end", len(f.open))
			}
		}
	}
}

func TestWhatIsOpenEndsWithItsCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := newIssuer(t)
		f := newFile(t, i.verifier("sub"), "w jwt=ci cert=c acquire=*")
		ends := time.Now().Add(10 * time.Second).Truncate(time.Second)
		for how, request := range map[string]*http.Request{
			"jwt": withBearer(i.token(jose.RS256, i.key, map[string]any{"exp": ends.Unix()})), "certificate": withCertificate("c", ends),
		} {
			ctx, stop := f.follow(request)
			t.Cleanup(stop)
			t.Cleanup(func() {
				if !errors.Is(context.Cause(ctx), ErrBadCredentials) {
					t.Errorf("%s: after its end: %v", how, context.Cause(ctx))
				}
			})
			synctest.Wait()
			if ctx.Err() != nil {
				t.Errorf("%s: ended at once: %v", how, context.Cause(ctx))
			}
			context.AfterFunc(ctx, func() {
				if early := time.Until(ends); early > 0 || early < -time.Millisecond {
					t.Errorf("%s: ended %s before its time", how, early)
				}
			})
		}
		ctx, stop := f.follow(withCertificate("c", ends))
		stop() // answered before
		if !errors.Is(context.Cause(ctx), context.Canceled) {
			t.Errorf("an answered request: %v", context.Cause(ctx))
		}
		time.Sleep(time.Until(ends) + time.Millisecond)
		synctest.Wait()
		if len(f.open) != 2 {
			t.Errorf("%d followed, want the two that ended and have not stopped", len(f.open))
		}
	})
}

// TestFollowingDuringAChange: a version of the file that locks a caller out ends
// its request, whether it comes before, while or after it is followed.
func TestFollowingDuringAChange(t *testing.T) {
	in, out := "w token="+tokenHash("s")+" acquire=*", "v cert=v"
	for range 200 {
		f := newFile(t, nil, in)
		r := withBearer("s")
		who, err := f.Identify(r)
		if err != nil {
			t.Fatal(err)
		}
		var change sync.WaitGroup
		change.Go(func() { f.change(out) })
		ctx, stop := f.Follow(r, who, func(*Identity) error { return nil })
		change.Wait()
		if ctx.Err() == nil {
			t.Fatal("a change was missed")
		}
		stop()
	}
}
