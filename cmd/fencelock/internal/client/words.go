package client

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cause"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
)

// plain describes an error of the service, or of the connection to it, in words.
func plain(err error) error {
	problem, refused := errors.AsType[*client.ProblemError](err)
	switch _, said := errors.AsType[cli.PlainError](err); {
	case err == nil || said:
		return err
	case refused && misdirected(problem):
		return cli.PlainError{Text: problemInWords(problem), Cause: cli.UsageError{Err: err}}
	case refused:
		return cli.PlainError{Text: problemInWords(problem), Cause: err}
	case errors.Is(err, client.ErrUnavailable):
		_, reason, _ := strings.Cut(err.Error(), client.ErrUnavailable.Error()+": ")
		return cli.PlainError{Cause: err, Text: "no server responds: " + cmp.Or(reason, "the service is unavailable") + whereElse}
	}
	if failed, ok := errors.AsType[*client.Error](err); ok { // the command names the operation already
		return cli.PlainError{Text: optionsAsFlags(strings.TrimPrefix(failed.Err.Error(), "client: ")), Cause: err}
	}
	return err
}

// optionsAsFlags names the flags in place of the options of package client, which checks them
// before it sends anything.
func optionsAsFlags(text string) string {
	return option.ReplaceAllStringFunc(text, func(found string) string {
		m := option.FindStringSubmatch(found)
		return flagOf[m[1]] + " " + m[2]
	})
}

var (
	option = regexp.MustCompile(`\b(TTL|Slots|MinHold|MaxHold|Wait|Patience)\(([^)]*)\)`)
	flagOf = map[string]string{
		"TTL": "--ttl", "Slots": "--slots", "MinHold": "--min-hold", "MaxHold": "--max-hold", "Wait": "--wait", "Patience": "--patience",
	}
)

// whereElse returns advice for a server that does not respond.
const whereElse = ". Start one with fencelock serve, or name another address with --url or " + varURL

// problemInWords describes a refusal by the service, and what to do. The service's detail names the
// subject.
func problemInWords(p *client.ProblemError) string {
	detail := cmp.Or(p.Detail, lowerFirst(p.Title))
	switch {
	case p.Kind() == "no-quorum":
		return fmt.Sprintf("the service has no quorum: %s. Run fencelock nodes to see what its nodes are waiting for", detail)
	case p.Kind() == "invalid-request":
		return "the request is not valid: " + fieldsAsFlags(detail)
	case p.Status == http.StatusForbidden:
		return "not allowed: " + detail
	case errors.Is(p, client.ErrDenied):
		return fmt.Sprintf("the service does not know this caller: set --bearer-token-file or %s, or use a client certificate (--client-cert-file, --client-key-file)", varBearerToken)
	case misdirected(p):
		return fmt.Sprintf("fencelock has nothing at this address (%d %s): check host, port and path (--url, %s); another server, or the admin port, may be there", p.Status, detail, varURL)
	case !strings.HasPrefix(p.Type, wire.ProblemPrefix):
		return fmt.Sprintf("the response (%d %s) did not come from fencelock: check host, port and scheme (--url, %s)", p.Status, p.Title, varURL)
	case p.Status == http.StatusTooManyRequests:
		return fmt.Sprintf("refused for now: %s. Try again in %s", detail, max(p.RetryAfter, time.Second))
	case p.Status >= http.StatusInternalServerError:
		return fmt.Sprintf("the server cannot respond now (%d): %s. Try again, or ask another server with --url", p.Status, detail)
	}
	return detail
}

// refusedAs reports whether the service refused with this kind of problem.
func refusedAs(err error, kind string) bool {
	problem, ok := errors.AsType[*client.ProblemError](err)
	return ok && problem.Kind() == kind
}

// misdirected reports whether the address is wrong: another server responded, or fencelock has nothing at
// the path. Such a response says nothing about a lock.
func misdirected(p *client.ProblemError) bool {
	foreign := !strings.HasPrefix(p.Type, wire.ProblemPrefix)
	return foreign && p.Status < http.StatusInternalServerError && !errors.Is(p, client.ErrDenied) || p.Kind() == "not-found" || p.Kind() == "method-not-allowed" || p.Kind() == "host-not-served"
}

func lowerFirst(text string) string {
	if text == "" {
		return "no details"
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// fieldsAsFlags names the flags that set the fields of a request, and the variables that set the limits.
func fieldsAsFlags(detail string) string {
	if m := ttlLimits.FindStringSubmatch(detail); m != nil {
		least, _ := strconv.ParseInt(m[1], 10, 64)
		most, _ := strconv.ParseInt(m[2], 10, 64)
		return fmt.Sprintf("--ttl must be from %s to %s, in whole milliseconds; the server's FENCELOCK_MAX_TTL sets the maximum%s",
			time.Duration(least)*time.Millisecond, time.Duration(most)*time.Millisecond, strings.Replace(m[3], ": ", ", and ", 1))
	}
	return strings.NewReplacer(
		"ttl_ms must be", "--ttl in milliseconds must be",
		"min_hold_ms must be", "--min-hold in milliseconds must be",
		"max_hold_ms must be", "--max-hold in milliseconds must be",
		"slots must be", "--slots must be",
		"slots must not be", "--slots must not be",
		"wait_ms must be", "--wait in milliseconds must be",
	).Replace(detail)
}

// ttlLimits returns the server's limits in its refusal of a TTL.
var ttlLimits = regexp.MustCompile(`^ttl_ms must be a whole number from (\d+) to (\d+)(: the store .*)?$`)

// withoutAdvice describes a connection error in words, without what to do.
func withoutAdvice(err error) string {
	return strings.TrimSuffix(plain(err).Error(), whereElse)
}

// explaining is a transport whose errors describe what happened, and at which server.
type explaining struct{ *http.Transport }

func (t explaining) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.Transport.RoundTrip(req)
	if err != nil {
		err = cli.PlainError{Text: req.URL.Scheme + "://" + req.URL.Host + " " + cause.InWords(err) + tlsAdvice(err), Cause: err}
	}
	return resp, err
}

// newTransport makes the transport of one command. It speaks only HTTP/1.1, like the client's own
// transport.
func newTransport(config *tls.Config) explaining {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return explaining{&http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, Protocols: protocols}}
}

// tlsAdvice returns what to do about a TLS connection that either side refused; "" for other errors.
func tlsAdvice(err error) string {
	if _, untrusted := errors.AsType[x509.UnknownAuthorityError](err); untrusted {
		return ": set --ca-file or " + varCAFile
	}
	if _, refused := errors.AsType[tls.AlertError](err); refused {
		return ": does it want a client certificate? (--client-cert-file, --client-key-file)"
	}
	return ""
}
