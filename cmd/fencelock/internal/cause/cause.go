// Package cause describes in plain words why a request to a server failed.
package cause

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// InWords describes why a request to a server failed, as the predicate of a sentence whose subject is the
// server.
func InWords(err error) string {
	if text := tlsInWords(err); text != "" {
		return text
	}
	lookup, isLookup := errors.AsType[*net.DNSError](err)
	timeout, isNet := errors.AsType[net.Error](err)
	switch {
	case isLookup && lookup.IsNotFound:
		return fmt.Sprintf("cannot be found: no host is called %s", lookup.Name)
	case isLookup:
		return fmt.Sprintf("cannot be found: the name %s cannot be looked up now", lookup.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refuses connections, so no server listens there"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "cannot be reached: there is no route to it"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed the connection without a response"
	case errors.Is(err, context.DeadlineExceeded), isNet && timeout.Timeout():
		return "did not respond in time"
	}
	return "cannot be asked: " + err.Error()
}

// tlsInWords describes what is wrong with a server's certificate, or with TLS at all; "" for other
// errors.
func tlsInWords(err error) string {
	unknown, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	name, isName := errors.AsType[x509.HostnameError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	alert := AlertOf(err)
	noTLS, isNoTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case isNoTLS && string(noTLS.RecordHeader[:]) == "HTTP/", errors.Is(err, http.ErrSchemeMismatch):
		return "speaks http, not https"
	case isNoTLS:
		return "responds without TLS"
	case isUnknown:
		return "presents a certificate from an authority that is not trusted here" + issuedBy(unknown.Cert)
	case isName:
		return fmt.Sprintf("presents a certificate for other names (%s)", strings.Join(name.Certificate.DNSNames, ", "))
	case isInvalid && invalid.Reason == x509.Expired:
		return fmt.Sprintf("presents a certificate that is valid from %s to %s only", invalid.Cert.NotBefore.Format(time.DateOnly), invalid.Cert.NotAfter.Format(time.DateOnly))
	case alert != nil:
		return fmt.Sprintf("refuses the TLS connection (%s)", alert)
	}
	return ""
}

// AlertOf returns the alert with which a server refused a TLS connection; nil if there is none.
func AlertOf(err error) error {
	if alert, ok := errors.AsType[tls.AlertError](err); ok {
		return alert
	}
	if failed, ok := errors.AsType[*net.OpError](err); ok && failed.Op == "remote error" { // this is how crypto/tls reports it
		return failed.Err
	}
	return nil
}

func issuedBy(cert *x509.Certificate) string {
	if cert == nil {
		return ""
	}
	return fmt.Sprintf(" (issued by %q)", cert.Issuer.String())
}

// OfPostgres is InWords for a database. It includes Postgres's own message.
func OfPostgres(err error) string {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return fmt.Sprintf("refuses: %s (SQLSTATE %s)", refused.Message, refused.Code)
	}
	return InWords(err)
}
