package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// Client talks to one lock service, through any of its servers. It is safe for
// concurrent use.
type Client struct {
	servers []string
	at      atomic.Uint32 // the server that answered last
	http    *http.Client
	token   string
	holder  string
	timeout time.Duration
	rounds  int
}

// Option tunes a Client.
type Option func(*Client)

// WithHTTPClient replaces the HTTP client, for TLS settings of one's own. Its
// Timeout must be 0: a request that waits in line may take minutes.
func WithHTTPClient(c *http.Client) Option { return func(cl *Client) { cl.http = c } }

// WithToken sends a bearer token with every request.
func WithToken(token string) Option { return func(c *Client) { c.token = token } }

// WithHolder sets the label that leases of this client show to everybody.
func WithHolder(label string) Option { return func(c *Client) { c.holder = label } }

// WithTimeout bounds one request to one server, beyond what it may wait in
// line; default 5s.
func WithTimeout(d time.Duration) Option { return func(c *Client) { c.timeout = d } }

// WithRounds sets how often all servers are asked before ErrUnavailable is
// returned, with pauses of 100ms, 200ms, … between; default 3.
func WithRounds(n int) Option { return func(c *Client) { c.rounds = max(1, n) } }

// New makes a Client for one or more servers of the same service, separated by
// commas: when one does not answer, the next is asked.
func New(servers string, opts ...Option) (*Client, error) {
	const idle = 64
	transport := &http.Transport{MaxIdleConnsPerHost: idle, Proxy: http.ProxyFromEnvironment}
	c := &Client{http: &http.Client{Transport: transport}, timeout: 5 * time.Second, rounds: 3}
	for server := range strings.SplitSeq(servers, ",") {
		u, err := url.Parse(strings.TrimSpace(server))
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fmt.Errorf("client: server %q: want a URL such as http://127.0.0.1:8080", server)
		}
		c.servers = append(c.servers, strings.TrimSuffix(u.String(), "/"))
	}
	for _, opt := range opts {
		opt(c)
	}
	return c, nil
}

// call is one request, to be sent to whichever server answers.
type call struct {
	method, path string
	body         any           // sent as JSON; nil for none
	key          string        // Idempotency-Key; "" for none
	wait         time.Duration // what it may wait in line
	into         any           // decoded from a success; nil for none
}

// do sends the call until a server answers it for good: each server once, and
// all of them again after a pause, as often as the client is told to. Every
// call may be sent twice: an acquire carries a key, the others change nothing
// twice. It returns when the answered request was sent.
func (c *Client) do(ctx context.Context, call call) (sent time.Time, err error) {
	const first = 50 * time.Millisecond
	for round := range c.rounds {
		if round > 0 && sleep(ctx, first<<round) != nil {
			break
		}
		if sent, err = c.askAll(ctx, call); !errors.Is(err, ErrUnavailable) {
			break
		}
	}
	return sent, err
}

func (c *Client) askAll(ctx context.Context, call call) (sent time.Time, err error) {
	first := c.at.Load()
	for i := range c.servers {
		n := (int(first) + i) % len(c.servers)
		sent = time.Now()
		err = c.ask(ctx, c.servers[n], call)
		if !errors.Is(err, ErrUnavailable) {
			c.at.Store(uint32(n))
			return sent, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return sent, err
}

func (c *Client) ask(ctx context.Context, server string, call call) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout+call.wait)
	defer cancel()
	var body io.Reader
	if call.body != nil {
		text, err := json.Marshal(call.body)
		if err != nil {
			return fmt.Errorf("client: request body: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, call.method, server+call.path, body)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	c.head(req, call)
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, withoutURL(err))
	}
	defer func() { _ = resp.Body.Close() }()
	return read(resp, call.into)
}

func (c *Client) head(req *http.Request, call call) {
	if call.body != nil {
		req.Header.Set("Content-Type", wire.TypeJSON)
	}
	if call.key != "" {
		req.Header.Set(wire.HeaderIdempotencyKey, call.key)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
}

// withoutURL drops the URL from the error: a lease id is part of it.
func withoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

func read(resp *http.Response, into any) error {
	const most = 1 << 20
	body, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return fmt.Errorf("%w: the answer broke off: %w", ErrUnavailable, err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return problemOf(resp, body)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("client: the service's answer: %w", err)
	}
	return nil
}

func problemOf(resp *http.Response, body []byte) error {
	e := &ProblemError{}
	if json.Unmarshal(body, &e.Problem) != nil || e.Type == "" { // not from the service: a proxy's
		e.Problem = wire.Problem{Type: "about:blank", Title: http.StatusText(resp.StatusCode)}
	}
	e.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
}

// newKey draws an idempotency key.
func newKey() string { return rand.Text() }
