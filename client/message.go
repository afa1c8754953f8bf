package client

import (
	"bytes"
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

// message is one try of a call, ready to be sent alone or in a batch.
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
			return nil, fmt.Errorf("client: request body: %w", err)
		}
	}
	if c.bearer != nil {
		if m.credential, err = c.bearer(ctx); err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
	}
	return m, nil
}

// request is the message as a request of its own.
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

// sendAlone sends the message as a request of its own.
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

// withoutURL drops the URL from the error, which the caller knows.
func withoutURL(err error) error {
	if failed, ok := asType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

// response is what a server answered to a message.
type response struct {
	status     int
	body       []byte
	retryAfter time.Duration // 0 if the server did not say
	requestID  string        // "" without one
	server     string        // its name; "" if it did not say
	from       *url.URL      // that was asked
	redirect   string        // where a redirect points
}

var errNotOurs = errors.New("the response did not come from the lock service")

// maxBody bounds an answer, in bytes: the longest is a page of locks.
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

// target is where a redirect points, without the path, which may have a lease id in it.
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

// read decodes a success, and makes an error of anything else.
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

// noType is the type of a refusal that is not the service's: a proxy's.
const noType = "about:blank"

func (r *response) problem() error {
	e := &ProblemError{RetryAfter: r.retryAfter, RequestID: r.requestID}
	if json.Unmarshal(r.body, &e.Problem) != nil || e.Type == "" { // not from the service: a proxy's
		e.Problem = wire.Problem{Type: noType, Title: http.StatusText(r.status)}
	}
	e.Status = r.status
	if r.from != nil {
		e.URL = r.from.Scheme + "://" + r.from.Host
	}
	return e
}
