package main

import (
	"cmp"
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

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
)

// inWords is an error that says in plain words what happened and what to do. It wraps
// what it explains.
type inWords struct {
	text  string
	cause error
}

func (e inWords) Error() string { return e.text }
func (e inWords) Unwrap() error { return e.cause }

// plain puts an error of the service, or of the way to it, into words.
func plain(err error) error {
	problem, refused := errors.AsType[*client.ProblemError](err)
	switch _, said := errors.AsType[inWords](err); {
	case err == nil || said:
		return err
	case refused:
		return inWords{text: problemInWords(problem), cause: err}
	case errors.Is(err, client.ErrUnavailable):
		_, reason, _ := strings.Cut(err.Error(), client.ErrUnavailable.Error()+": ")
		return inWords{cause: err, text: "no server answers: " + cmp.Or(reason, "the service is unavailable") + whereElse}
	}
	if failed, ok := errors.AsType[*client.Error](err); ok { // the command names the operation already
		return inWords{text: strings.TrimPrefix(failed.Err.Error(), "client: "), cause: err}
	}
	return err
}

// whereElse is what to do about a server that does not answer.
const whereElse = ". Start one with fencelock serve, or name another address with --server or " + varURL

// problemInWords says what the service refused, and what to do. The service's own detail
// names what it is about.
func problemInWords(p *client.ProblemError) string {
	detail := cmp.Or(p.Detail, lowerFirst(p.Title))
	switch {
	case p.Kind() == "no-quorum":
		return fmt.Sprintf("the service has no quorum: %s. See what its nodes wait for with fencelock nodes", detail)
	case p.Kind() == "invalid-request":
		return "the request is not valid: " + fieldsAsFlags(detail)
	case p.Status == http.StatusForbidden:
		return "not allowed: " + detail
	case errors.Is(p, client.ErrDenied):
		return fmt.Sprintf("the service does not know this caller: set --credential-file or %s, or use a client certificate (--cert-file, --key-file)", varBearerToken)
	case !strings.HasPrefix(p.Type, wire.ProblemPrefix):
		return fmt.Sprintf("the answer, %d %s, is not a fencelock's: is the address right, and its http or https? (--server, %s)", p.Status, p.Title, varURL)
	case p.Status == http.StatusTooManyRequests:
		return fmt.Sprintf("refused for now: %s. Try again in %s", detail, max(p.RetryAfter, time.Second))
	case p.Status >= http.StatusInternalServerError:
		return fmt.Sprintf("the server cannot answer now (%d): %s. Try again, or ask another server with --server", p.Status, detail)
	}
	return detail
}

func lowerFirst(text string) string {
	if text == "" {
		return "it says no more"
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// fieldsAsFlags names the flags that set the fields of a request.
func fieldsAsFlags(detail string) string {
	return strings.NewReplacer(
		"ttl_ms must be", "--ttl in milliseconds must be",
		"min_hold_ms must be", "--at-least in milliseconds must be",
		"max_hold_ms must be", "--max-hold in milliseconds must be",
		"wait_ms must be", "--wait in milliseconds must be",
	).Replace(detail)
}

// explaining is a transport whose errors say in words what happened at which server.
type explaining struct{ *http.Transport }

func (t explaining) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(req)
	if err != nil {
		err = inWords{text: req.URL.Scheme + "://" + req.URL.Host + " " + causeInWords(err), cause: err}
	}
	return resp, err
}

// newTransport is for one command: it speaks HTTP/1.1 only, as the client's own does.
func newTransport(config *tls.Config) explaining {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return explaining{&http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, Protocols: protocols}}
}

// causeInWords says why a server could not be asked, as the predicate of a sentence
// whose subject is the server.
func causeInWords(err error) string {
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
		return "closed the connection without an answer"
	case errors.Is(err, context.DeadlineExceeded), isNet && timeout.Timeout():
		return "did not answer in time"
	}
	return "cannot be asked: " + err.Error()
}

// tlsInWords is what is wrong with a server's certificate, or with https at all; "" for
// another error.
func tlsInWords(err error) string {
	unknown, isUnknown := errors.AsType[x509.UnknownAuthorityError](err)
	name, isName := errors.AsType[x509.HostnameError](err)
	invalid, isInvalid := errors.AsType[x509.CertificateInvalidError](err)
	alert, isAlert := errors.AsType[tls.AlertError](err)
	_, isNoTLS := errors.AsType[tls.RecordHeaderError](err)
	switch {
	case isNoTLS, errors.Is(err, http.ErrSchemeMismatch):
		return "speaks http, not https"
	case isUnknown:
		return fmt.Sprintf("shows a certificate of an authority that is not trusted here: set --ca-file or %s%s", varCAFile, issuedBy(unknown.Cert))
	case isName:
		return fmt.Sprintf("shows a certificate for other names (%s)", strings.Join(name.Certificate.DNSNames, ", "))
	case isInvalid && invalid.Reason == x509.Expired:
		return fmt.Sprintf("shows a certificate that is valid from %s to %s only", invalid.Cert.NotBefore.Format(time.DateOnly), invalid.Cert.NotAfter.Format(time.DateOnly))
	case isAlert:
		return fmt.Sprintf("refuses the TLS connection (%s): does it want a client certificate? (--cert-file, --key-file)", alert)
	}
	return ""
}

func issuedBy(cert *x509.Certificate) string {
	if cert == nil {
		return ""
	}
	return fmt.Sprintf(" (issued by %q)", cert.Issuer.String())
}
