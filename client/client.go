package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Client talks to one lock service, through any of its servers. It is safe for
// concurrent use. New makes one; the calls of a zero Client return an error.
type Client struct {
	servers []string
	peers   []*peer       // the same
	at      atomic.Uint32 // the server that answered last
	pace    pace
	http    *http.Client
	tls     *tls.Config
	life    *lifetime
	extends appointments // of leases that are kept alive

	ownsTransport bool                                  // http was made here
	bearer        func(context.Context) (string, error) // nil for none
	holder        string
	timeout       time.Duration
	patience      time.Duration
	poll          time.Duration
	batchAfter    int         // negative for no batches
	onRetry       func(Retry) // nil for none
}

// Option tunes a Client, in New.
type Option func(*Client)

// WithHTTPClient replaces the HTTP client, for a transport of one's own. Its
// Timeout must be 0: a request that waits in the queue may take minutes. Its
// CheckRedirect is not asked: no redirect is followed.
func WithHTTPClient(c *http.Client) Option { return func(cl *Client) { cl.http = c } }

// WithTLSConfig sets how TLS connections are made: which authorities are
// trusted, and the certificate of a client that has one (see TLSFiles). It does
// not go together with WithHTTPClient, which has a transport of its own.
func WithTLSConfig(config *tls.Config) Option { return func(c *Client) { c.tls = config } }

// WithBearerToken sends a bearer token, the caller's credential, with every request.
func WithBearerToken(credential string) Option {
	return WithBearerTokenFunc(func(context.Context) (string, error) { return credential, nil })
}

// WithBearerTokenFunc gets the bearer token before every request, for
// credentials that change. It may be called by several goroutines at once. Its
// error is returned as it is, and nothing is sent.
func WithBearerTokenFunc(credential func(context.Context) (string, error)) Option {
	return func(c *Client) { c.bearer = credential }
}

// WithBearerTokenFile reads the bearer token from a file, before every request,
// so that a file that is replaced needs no restart. White space around it is
// dropped.
func WithBearerTokenFile(path string) Option {
	return WithBearerTokenFunc(func(context.Context) (string, error) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", fmt.Errorf("bearer token: %w", err)
		}
		credential := strings.TrimSpace(string(text))
		if credential == "" {
			return "", fmt.Errorf("bearer token: %s is empty", path)
		}
		return credential, nil
	})
}

// WithHolder sets the label that leases of this client show to all callers: at most
// 256 bytes of valid UTF-8. The option Holder replaces it for one lease.
func WithHolder(label string) Option { return func(c *Client) { c.holder = label } }

// WithTimeout sets the most that one request to one server may take, beyond what it may
// wait in the queue; default 5s. It takes less when its answer is overdue by what answers
// have taken (the next server is asked then), and when a lease is about to end.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// New makes a Client for the URLs of one or more servers of the same service: a call goes to
// the next server when one does not answer.
func New(servers []string, opts ...Option) (*Client, error) {
	c := &Client{timeout: 5 * time.Second, patience: 15 * time.Second, poll: 45 * time.Second, batchAfter: batchAfter, life: newLifetime()}
	c.pace.took(shortestTry)
	if len(servers) == 0 {
		return nil, errors.New("client: name at least one server")
	}
	for _, text := range servers {
		server, err := serverURL(text)
		if err != nil {
			return nil, err
		}
		p := &peer{url: server, probing: make(chan struct{}, 1)}
		p.batcher = &batcher{client: c, server: p}
		c.servers, c.peers = append(c.servers, server), append(c.peers, p)
	}
	for _, opt := range opts {
		opt(c)
	}
	c.poll = c.poll.Truncate(time.Second)
	switch {
	case !utf8.ValidString(c.holder):
		return nil, fmt.Errorf("client: the holder %q must be valid UTF-8", c.holder)
	case c.poll <= 0:
		return nil, errors.New("client: WithPoll needs at least a second")
	case c.http != nil && c.tls != nil:
		return nil, errors.New("client: WithTLSConfig has no effect on the client of WithHTTPClient: set it in that client's transport")
	case c.http != nil && c.http.Timeout != 0:
		return nil, errors.New("client: the HTTP client's Timeout must be 0, since waiting in the queue takes longer; see WithTimeout")
	case c.http == nil:
		c.http, c.ownsTransport = &http.Client{Transport: transport(c.tls)}, true
	}
	c.http = withoutRedirects(c.http)
	return c, nil
}

// serverURL is the URL of a server without the slash at its end. Its error shows no password.
func serverURL(text string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(text))
	switch {
	case strings.Contains(text, ","):
		return "", errors.New("client: a server's URL has a comma: name several servers as elements of the slice")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil:
		return "", errors.New("client: every server must be a URL such as http://127.0.0.1:8080, without a password")
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

// withoutRedirects is the client, except that it returns a redirect as the response it is:
// following one would take lease ids and credentials to another host, and turn a DELETE into a GET.
func withoutRedirects(from *http.Client) *http.Client {
	c := *from
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

// transport speaks HTTP/1.1 only: with a connection a request, one that a
// network swallows takes no other request with it. It keeps as many idle ones as a busy
// process has callers: with fewer, each round of calls dials some of them again.
func transport(config *tls.Config) *http.Transport {
	const idle = 1024
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, Protocols: protocols,
		MaxIdleConnsPerHost: idle, IdleConnTimeout: time.Minute,
	}
}
