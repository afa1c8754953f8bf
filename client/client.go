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
)

// Client talks to one lock service, through any of its servers. It is safe for
// concurrent use. New makes one; the calls of a zero Client return an error.
type Client struct {
	servers []string
	peers   []*peer       // one for each of servers
	at      atomic.Uint32 // the index of the server that responded last
	pace    pace
	http    *http.Client
	tls     *tls.Config
	life    *lifetime
	extends appointments // when leases that are kept alive will be extended

	ownsTransport bool                                  // this client made the transport of http, and so closes it
	bearer        func(context.Context) (string, error) // nil for none
	holder        string
	timeout       time.Duration
	patience      time.Duration
	poll          time.Duration
	batchAfter    int         // negative for no batches
	onRetry       func(Retry) // nil for none
}

// Option is a setting of a Client, for New.
type Option func(*Client)

// WithHTTPClient sets the HTTP client, for example to use another transport. Its Timeout must be 0, because a
// request that waits in the queue may take minutes. Its CheckRedirect is ignored, because redirects are not
// followed.
func WithHTTPClient(c *http.Client) Option { return func(cl *Client) { cl.http = c } }

// WithTLSConfig sets how TLS connections are made: which authorities are trusted, and which certificate this
// client presents, if any (see TLSFiles). It cannot be combined with WithHTTPClient, which brings its own
// transport.
func WithTLSConfig(config *tls.Config) Option { return func(c *Client) { c.tls = config } }

// WithBearerToken sends a bearer token, the caller's credential, with every request.
func WithBearerToken(credential string) Option {
	return WithBearerTokenFunc(func(context.Context) (string, error) { return credential, nil })
}

// WithBearerTokenFunc calls credential before every request, for bearer tokens that change. Several goroutines
// may call it at once. If it returns an error, nothing is sent, and the call returns that error unchanged.
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

// WithTimeout sets the maximum time of one request to one server, not counting its wait in the queue; default
// 5s. A request gets less time if its response is overdue compared with earlier responses (the client then asks
// the next server), and if a lease is about to end.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// New makes a Client for the URLs of one or more servers of the same service. If a server does not respond, a
// call goes to the next one.
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
		p := &peer{url: server, probing: make(chan struct{}, 1), waits: make(lane, waitLane), calls: make(lane, callLane), renewals: make(lane, renewLane), batches: make(lane, 1)}
		p.batcher = &batcher{client: c, server: p}
		c.servers, c.peers = append(c.servers, server), append(c.peers, p)
	}
	for _, opt := range opts {
		opt(c)
	}
	c.poll = c.poll.Truncate(time.Second)
	if err := checkHolder(c.holder); err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	switch {
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

// serverURL returns the URL of a server without a slash at its end. Its errors contain no password.
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

// withoutRedirects returns a copy of the client that returns a redirect as a response. Following a redirect
// would send lease ids and credentials to another host, and turn a DELETE into a GET.
func withoutRedirects(from *http.Client) *http.Client {
	c := *from
	c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &c
}

// transport makes an HTTP/1.1 transport: each request has its own connection, so a connection that the network
// loses affects one request only. It keeps as many idle connections as the lanes may use; with fewer, each
// burst of calls would dial some of them again.
func transport(config *tls.Config) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, Protocols: protocols,
		MaxIdleConnsPerHost: allLanes, IdleConnTimeout: time.Minute,
	}
}
