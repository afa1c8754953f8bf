package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

const (
	// loginTime is the initial time limit of a login. It doubles with each login that got no response.
	// Checking a password costs etcd a tenth of a core-second, and takes longer on a busy etcd. etcd finishes
	// the check even if the client has given up.
	loginTime    = 5 * time.Second
	maxLoginTime = time.Minute
	// loginPause is the pause before a login. It doubles up to maxLoginPause while the previous login was less
	// than calmTime ago.
	loginPause    = 50 * time.Millisecond
	maxLoginPause = time.Second
	calmTime      = 10 * time.Second
)

// login keeps the token by which etcd knows the user. One login runs at a time, however many requests wait for
// it, and it outlives each of them. The etcd client would log in for every watch and every request whose token
// is refused, and cancel the login with the request.
type login struct {
	needed      bool                           // the URL has a user
	credentials func() (user, password string) // of the next login
	ask         func(ctx context.Context, user, password string) (token string, err error)

	mu    sync.Mutex
	in    bool   // the token is believed to be valid
	token string // "" if etcd requires no login
	err   error  // error of the last login
	under chan struct{}
	ended time.Time     // when the last login ended
	pause time.Duration // pause before the next login
	limit time.Duration // time limit of the next login
}

// loginError says that etcd has not let the user in.
type loginError struct {
	user  string
	cause error
}

func (e *loginError) Error() string {
	if errors.Is(e.cause, context.DeadlineExceeded) || errors.Is(e.cause, context.Canceled) {
		return fmt.Sprintf("authentication: etcd has not answered the login of the user %q yet", e.user)
	}
	return fmt.Sprintf("authentication: etcd does not let the user %q in: %v", e.user, e.cause)
}

func (e *loginError) Unwrap() error { return e.cause }

// errToken says that etcd refuses the token. etcd has not executed the request.
var errToken = errors.New("etcd no longer knows the login's token")

// await returns when there is a token, or with the error of the login.
func (l *login) await(ctx context.Context) error {
	l.mu.Lock()
	if l.in || !l.needed {
		l.mu.Unlock()
		return nil
	}
	if l.under == nil {
		l.under = make(chan struct{})
		go l.run(context.WithoutCancel(ctx), l.under)
	}
	under, last := l.under, l.err
	l.mu.Unlock()
	select {
	case <-under:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.err
	case <-ctx.Done():
		if last != nil {
			return last
		}
		user, _ := l.credentials()
		return &loginError{user, ctx.Err()}
	}
}

// run logs in once.
func (l *login) run(ctx context.Context, under chan struct{}) {
	l.mu.Lock()
	if time.Since(l.ended) > calmTime {
		l.pause = 0
	}
	l.pause = min(max(loginPause, 2*l.pause), maxLoginPause)
	pause, limit := l.pause, max(l.limit, loginTime)
	l.mu.Unlock()
	time.Sleep(pause)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	user, password := l.credentials()
	token, err := l.ask(ctx, user, password)
	if errors.Is(err, rpctypes.ErrAuthNotEnabled) {
		token, err = "", nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in, l.token, l.err, l.under, l.limit, l.ended = err == nil, token, nil, nil, 0, time.Now()
	if err != nil {
		l.err = &loginError{user, err}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		l.limit = min(2*limit, maxLoginTime)
	}
	close(under)
}

// refused records that etcd refuses a token.
func (l *login) refused(token string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in = l.in && l.token != token
}

func (l *login) present() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.token
}

// options make every request carry the token.
func (l *login) options() []grpc.DialOption {
	if !l.needed {
		return nil
	}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream)}
}

func withToken(ctx context.Context, token string) context.Context {
	if token == "" {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
}

func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	token := l.present()
	if method == pb.Auth_Authenticate_FullMethodName {
		token = "" // etcd refuses a login with a token that it does not know
	}
	err := invoke(withToken(ctx, token), method, req, reply, cc, options...)
	switch known := rpctypes.Error(err); {
	case errors.Is(known, rpctypes.ErrInvalidAuthToken), errors.Is(known, rpctypes.ErrAuthOldRevision), errors.Is(known, rpctypes.ErrUserEmpty):
		l.refused(token)
		return errToken
	}
	return err
}

func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	return open(withToken(ctx, l.present()), desc, cc, method, options...)
}

// Admits returns the error of an etcd that does not let the URL's user in. It returns nil for one
// that does not respond, and never shows the URL.
func Admits(ctx context.Context, url string) error {
	t, err := parse(url)
	if err != nil {
		return err
	}
	c, err := dial(t, defaultTimeout)
	if err != nil {
		return hinted(err, t)
	}
	defer func() { _ = c.client.Close() }()
	if err := c.login.await(ctx); errors.Is(err, rpctypes.ErrAuthFailed) {
		return hinted(err, t)
	}
	return nil
}
