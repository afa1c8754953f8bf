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
	// loginTime is how long etcd may check a password, at first: it doubles with each login
	// that was not answered. To check one costs etcd a tenth of a second of a core, and more
	// where it is busy; one that is abandoned it checks all the same.
	loginTime    = 5 * time.Second
	maxLoginTime = time.Minute
	// loginPause is the time before a login, and doubles up to maxLoginPause while the one
	// before was less than calmTime ago.
	loginPause    = 50 * time.Millisecond
	maxLoginPause = time.Second
	calmTime      = 10 * time.Second
)

// login keeps the token by which etcd knows the user. There is one login at a time, however
// many requests wait for it, and it outlives each of them. The client of etcd would log in
// for every request whose token is refused and for every watch, and give up with them.
type login struct {
	user string
	ask  func(context.Context) (token string, err error)

	mu    sync.Mutex
	in    bool   // the token is good, as far as is known
	token string // "" where etcd asks for none
	err   error  // of the last login
	under chan struct{}
	ended time.Time     // the last login
	pause time.Duration // before it
	limit time.Duration // of the next login
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

// errToken: etcd refuses the token. It has not done what the request asked for.
var errToken = errors.New("etcd no longer knows the login's token")

// await returns when there is a token.
func (l *login) await(ctx context.Context) error {
	l.mu.Lock()
	if l.in || l.user == "" {
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
		return &loginError{l.user, ctx.Err()}
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
	token, err := l.ask(ctx)
	if errors.Is(err, rpctypes.ErrAuthNotEnabled) {
		token, err = "", nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.in, l.token, l.err, l.under, l.limit, l.ended = err == nil, token, nil, nil, 0, time.Now()
	if err != nil {
		l.err = &loginError{l.user, err}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		l.limit = min(2*limit, maxLoginTime)
	}
	close(under)
}

// refused notes that etcd refuses a token.
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

// options have every request carry the token.
func (l *login) options() []grpc.DialOption {
	if l.user == "" {
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
