package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// unfitError says why an etcd cannot keep a store, and what to change.
type unfitError struct{ reason string }

func (e *unfitError) Error() string { return e.reason }

// unanswered reports whether another member may be able to serve a request that failed with err.
func unanswered(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	code := status.Code(err)
	if known, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		code = known.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}

// hinted adds advice to an error.
func hinted(err error, t *target) error {
	if unanswered(err) { // gRPC would only report that the time is over
		if cause := t.probe(); cause != nil {
			err = cause
		}
	}
	text := err.Error()
	switch {
	case errors.Is(err, rpctypes.ErrAuthFailed):
		return fmt.Errorf("etcd refuses the user %q with this password: correct them in the URL, or set the password with etcdctl user passwd: %w", t.user, err)
	case errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("etcd requires a user: write etcd://user:password@… : %w", err)
	case strings.Contains(text, "x509:"), strings.Contains(text, "unknown certificate authority"):
		return fmt.Errorf("the certificate of etcd is not trusted: name its authority as ?ca=/path/ca.pem in the URL: %w", err)
	case strings.Contains(text, "tls:"), t.tls != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)): // one without TLS hangs up
		return fmt.Errorf("no TLS connection to etcd: write etcds:// for an etcd with TLS and etcd:// for one without, and name a client certificate with ?cert= and &key= if it asks for one: %w", err)
	case errors.As(err, new(*loginError)) && errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: it is running, but checks passwords slowly: look at its load and its --bcrypt-cost", err)
	case unanswered(err), errors.As(err, new(net.Error)):
		return &replica.UnreachedError{Err: fmt.Errorf("no etcd responds at %s: start it, or correct the addresses, and write etcds:// if it uses TLS: %w", strings.Join(t.hosts, ", "), err)}
	}
	return err
}

// permitted adds to a permission error the etcdctl command that grants the permission.
func (t *target) permitted(err error) error {
	if !errors.Is(err, rpctypes.ErrPermissionDenied) {
		return err
	}
	return fmt.Errorf("the user %q may not read and write below %s: etcdctl role grant-permission ROLE --prefix=true readwrite %s: %w", t.user, t.prefix, t.prefix, err)
}
