package client

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// message is one attempt of a call, ready to be sent alone or in a batch.
type message struct {
	*call

	json       []byte // nil for no body
	credential string // the bearer token; "" for none
	prefer     time.Duration
}

func (c *Client) message(ctx context.Context, call *call, wait time.Duration) (m *message, err error) {
	m = &message{call: call}
	if call.body != nil {
		if m.json, err = json.Marshal(call.body(wait)); err != nil {
			return nil, fmt.Errorf("%w: request body: %w", errNotMade, err)
		}
	}
	if c.bearer != nil {
		ctx, cancel := context.WithTimeout(ctx, c.timeout)
		defer cancel()
		if m.credential, err = c.bearer(ctx); err != nil {
			return nil, credentialError(call, err)
		}
	}
	return m, nil
}

// errNotMade begins an error of the caller's own code because of which no request could be made.
var errNotMade = errors.New("client")

// credentialError returns the error of the caller's credential function. If the call must be done in any case,
// the error allows another try.
func credentialError(call *call, err error) error {
	if call.owed {
		return fmt.Errorf("%w: %w", errNotSent, err)
	}
	return fmt.Errorf("%w: %w", errNotMade, err)
}

// request returns the message as a single HTTP request.
func (m *message) request(ctx context.Context, server string) (*http.Request, error) {
	req, err := newRequest(ctx, m.method, server+m.path, m.json, m.credential)
	if err != nil {
		return nil, err
	}
	if m.key != "" {
		req.Header.Set(wire.HeaderIdempotencyKey, m.key)
	}
	if m.lease != "" {
		req.Header.Set(wire.HeaderLease, m.lease)
	}
	if m.token != 0 {
		req.Header.Set(wire.HeaderFencingToken, m.token.String())
	}
	if m.proof != "" {
		req.Header.Set(wire.HeaderFencingProof, m.proof)
	}
	if m.named != "" {
		req.Header.Set(wire.HeaderResource, url.PathEscape(m.named))
	}
	if m.prefer > 0 {
		req.Header.Set(wire.HeaderPrefer, "wait="+strconv.Itoa(int(m.prefer/time.Second)))
	}
	return req, nil
}

func newRequest(ctx context.Context, method, address string, text []byte, credential string) (*http.Request, error) {
	var body io.Reader
	if text != nil {
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", withoutURL(err))
	}
	if text != nil {
		req.Header.Set("Content-Type", wire.TypeJSON)
	}
	if credential != "" {
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(credential))
	}
	return req, nil
}

// sendAlone sends the message as a single request.
func (c *Client) sendAlone(ctx context.Context, server *peer, m *message) (response, error) {
	req, err := m.request(ctx, server.url)
	if err != nil {
		return response{}, err
	}
	return c.exchange(req)
}

func (c *Client) exchange(req *http.Request) (response, error) {
	resp, err := c.http.Do(req)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	return responseOf(resp)
}

// withoutURL removes the URL, which the caller knows, from the error.
func withoutURL(err error) error {
	if failed, ok := asType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// response is a server's response to a message.
type response struct {
	status     int
	body       []byte
	retryAfter time.Duration // 0 if the server did not say
	requestID  string        // "" without one
	server     string        // its name; "" if it did not say
	from       *url.URL      // the server's URL
	redirect   string        // the target of a redirect
}

var errNotOurs = errors.New("the response did not come from the lock service")

// maxBody bounds a response, in bytes. The longest response is a page of locks.
const maxBody = 16 << 20

func responseOf(resp *http.Response) (r response, err error) {
	r.status, r.server, r.requestID = resp.StatusCode, resp.Header.Get(wire.HeaderServer), resp.Header.Get(wire.HeaderRequestID)
	if resp.Request != nil {
		r.from = resp.Request.URL
	}
	if after := resp.Header.Get("Retry-After"); after != "" {
		seconds, _ := strconv.Atoi(after) // 0 if it is a date
		r.retryAfter = time.Duration(seconds) * time.Second
	}
	if r.redirects() {
		r.redirect = target(resp)
	}
	if r.body, err = io.ReadAll(io.LimitReader(resp.Body, maxBody)); err != nil {
		return r, fmt.Errorf("the response broke off: %w", err)
	}
	return r, nil
}

// target returns the target of a redirect without its path, which may contain a lease id.
func target(resp *http.Response) string {
	to, err := resp.Location()
	if err != nil {
		return "nowhere"
	}
	return to.Scheme + "://" + to.Host
}

func (r *response) redirects() bool {
	return r.status >= http.StatusMultipleChoices && r.status < http.StatusBadRequest
}

// read decodes a successful response, and returns an error for any other.
func (r *response) read(into any) error {
	switch {
	case r.status >= http.StatusBadRequest:
		return r.problem()
	case r.redirects():
		return fmt.Errorf("client: %w: it is a redirect to %s, which is not followed: is the address right?", errNotOurs, r.redirect)
	case into == nil:
		return nil
	}
	if err := json.Unmarshal(r.body, into); err != nil {
		return fmt.Errorf("client: %w: is the address right? %w", errNotOurs, err)
	}
	return nil
}

// noType is the type of a refusal that does not come from the service, but from a proxy for example.
const noType = "about:blank"

func (r *response) problem() error {
	var answer wire.Problem
	if json.Unmarshal(r.body, &answer) != nil || answer.Type == "" { // it comes from a proxy
		answer = wire.Problem{Type: noType, Title: http.StatusText(r.status)}
	}
	answer.Status = r.status
	e := ProblemOf(answer)
	e.RetryAfter, e.RequestID = r.retryAfter, cmp.Or(r.requestID, e.RequestID)
	if r.from != nil {
		e.URL = r.from.Scheme + "://" + r.from.Host
	}
	return e
}
