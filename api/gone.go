package api

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"syscall"

	"github.com/fencelock/fencelock/api/access"
)

// errHungUp: the caller closed its connection, although net/http has not
// noticed yet.
var errHungUp = errors.New("the caller has hung up")

type connKey struct{}

// ConnContext is for http.Server.ConnContext. With it a grant is not written
// to a connection that its caller has closed: net/http tells of that a moment
// later, by a goroutine of its own, and what was written in that moment is a
// lease that nobody knows of and that stands in the way for all of its TTL.
//
// It also keeps the certificate that was shown on a connection which comes back
// after a long wait (Listener.Give): net/http does not look into such a one.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	if back, ok := c.(*returned); ok {
		if secure, ok := back.Conn.(*tls.Conn); ok {
			state := secure.ConnectionState()
			ctx = access.WithTLS(ctx, &state)
		}
	}
	if s, ok := c.(syscall.Conn); ok {
		if raw, err := s.SyscallConn(); err == nil {
			return context.WithValue(ctx, connKey{}, raw)
		}
	}
	return ctx
}

// gone says why the caller cannot read an answer any more, nil if it can as
// far as this machine knows. An HTTP/2 connection is shared, and its streams
// are ended by messages, not by its end.
func gone(r *http.Request) error {
	if err := r.Context().Err(); err != nil {
		return err
	}
	raw, ok := r.Context().Value(connKey{}).(syscall.RawConn)
	if ok && r.ProtoMajor == 1 && hungUp(raw) {
		return errHungUp
	}
	return nil
}
