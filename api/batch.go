package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// MaxBatch bounds the operations of one POST /locks/batch.
const MaxBatch = 128

// Each operation of a batch is passed to the handler of the corresponding single request, as a request that
// comes over no connection. So it is authorized, limited, counted and traced as if it had been sent alone, and
// has the same outcome.

// batchBody is the server's form of wire.Batch.
type batchBody struct {
	Operations []batchOperation `json:"operations"`
}

type batchOperation struct {
	Operation      string         `json:"operation"`
	IdempotencyKey *string        `json:"idempotency_key"`
	LeaseID        *string        `json:"lease_id"`
	Body           jsontext.Value `json:"body"`
}

// decodeBatch reads and checks the body of a batch. The body of each operation is left to that operation's
// handler. The error is a *lockcore.FieldError.
func decodeBatch(data []byte) ([]batchOperation, error) {
	const field = "operations"
	var body batchBody
	if err := decodeJSON(data, &body); err != nil {
		return nil, err
	}
	if n := len(body.Operations); n < 1 || n > MaxBatch {
		return nil, badField(field, fmt.Sprintf("must contain 1 to %d operations", MaxBatch))
	}
	for i, o := range body.Operations {
		switch o.Operation {
		case wire.OperationAcquire, wire.OperationExtend, wire.OperationRelease:
		default:
			return nil, badField(field, fmt.Sprintf("must be acquire, extend or release in the operation at index %d", i))
		}
		if o.Operation != wire.OperationAcquire && o.IdempotencyKey != nil {
			return nil, badField(field, fmt.Sprintf("must contain an idempotency_key only for an acquire, not at index %d", i))
		}
		if o.Operation == wire.OperationAcquire && o.LeaseID != nil {
			return nil, badField(field, fmt.Sprintf("must not contain a lease_id for an acquire, as at index %d", i))
		}
		if o.Operation == wire.OperationRelease && len(o.Body) > 0 {
			return nil, badField(field, fmt.Sprintf("must not contain a body for a release, as at index %d", i))
		}
	}
	return body.Operations, nil
}

// batchPart is set in the context of a request that is an operation of a batch.
type batchPart struct {
	who    *access.Identity // the batch's caller; nil without access control
	paid   bool             // the batch itself was counted instead
	unread *unreadGrants
}

type batchPartKey struct{}

// unreadGrants releases the grants of a batch if the batch's response is not delivered.
type unreadGrants struct {
	mu      sync.Mutex
	release []func()
}

func (u *unreadGrants) add(release func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.release = append(u.release, release)
}

// releaseAll releases them at once. All operations must have ended.
func (u *unreadGrants) releaseAll() {
	var running sync.WaitGroup
	for _, release := range u.release {
		running.Go(release)
	}
	running.Wait()
}

// undelivered arranges that the grant is released unless the batch's response is delivered.
func (s *Server) undelivered(w *exchange, r *http.Request, req lockcore.Request, lease lockcore.Lease) {
	w.part.unread.add(func() { s.releaseUnread(w, r, &req, lease) })
}

// batch is POST /locks/batch.
func (s *Server) batch(w *exchange, r *http.Request) error {
	for _, name := range []string{wire.HeaderIdempotencyKey, wire.HeaderLease} {
		if len(r.Header[name]) > 0 {
			return badField(name, "must not be sent with a batch: each operation has its own, in the body")
		}
	}
	buf := s.buffer()
	defer s.recycle(buf)
	if err := readBody(w, r, buf, false); err != nil {
		return err
	}
	operations, err := decodeBatch(buf.Bytes())
	if err != nil {
		return err
	}
	if err := w.expense.take(int64(len(operations)) * resultBytes); err != nil {
		return err
	}
	give, err := s.turns.take(r.Context(), shareholder(w, r), len(operations))
	if err != nil {
		return err
	}
	unread := new(unreadGrants)
	defer give() // after the response is delivered
	results := s.perform(w, r, operations, unread)
	if err = edge.Gone(r); err == nil {
		err = s.deliverBatch(w, results)
	}
	if err != nil {
		unread.releaseAll()
	}
	return err
}

func (s *Server) deliverBatch(w *exchange, results []wire.BatchResult) error {
	if err := s.write(w, http.StatusOK, wire.TypeJSON, wire.BatchResults{Results: results}); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// perform runs all operations concurrently.
func (s *Server) perform(w *exchange, r *http.Request, operations []batchOperation, unread *unreadGrants) []wire.BatchResult {
	results := make([]wire.BatchResult, len(operations))
	id := w.Header()[wire.HeaderRequestID]
	var running sync.WaitGroup
	running.Add(len(operations))
	for i, o := range operations {
		part := &batchPart{who: w.who, paid: i == 0, unread: unread}
		s.crew.run(func() {
			defer running.Done()
			results[i] = s.performOne(o.request(r, id, part))
		})
	}
	running.Wait()
	return results
}

// performOne returns the result of one operation. An operation that was aborted gives an internal error, which
// nobody reads if the caller has hung up.
func (s *Server) performOne(r *http.Request) (result wire.BatchResult) {
	var answer recorder
	defer func() {
		if cause := recover(); cause != nil { // instrument has logged it, and left http.ErrAbortHandler
			a := s.classify(errInternal)
			a.RequestID = r.Header.Get(wire.HeaderRequestID)
			body, err := json.Marshal(a.Problem)
			if err != nil {
				panic(err) // it contains only values that JSON can represent
			}
			result = wire.BatchResult{Status: a.Status, Body: body}
		}
	}()
	s.router.ServeHTTP(&answer, r)
	return answer.result()
}

// request makes the equivalent single request.
func (o *batchOperation) request(batch *http.Request, id []string, part *batchPart) *http.Request {
	header := http.Header{wire.HeaderRequestID: id}
	method, path := http.MethodPost, "/locks"
	switch o.Operation {
	case wire.OperationExtend:
		path = currentLease + "/extend"
	case wire.OperationRelease:
		method, path = http.MethodDelete, currentLease
	}
	if o.IdempotencyKey != nil {
		header[wire.HeaderIdempotencyKey] = []string{*o.IdempotencyKey}
	}
	if o.LeaseID != nil {
		header[wire.HeaderLease] = []string{*o.LeaseID}
	}
	if len(o.Body) > 0 {
		header["Content-Type"] = jsonBody
	}
	ctx := context.WithValue(batch.Context(), batchPartKey{}, part)
	ctx = context.WithValue(ctx, chi.RouteCtxKey, nil) // otherwise the router believes that it is mounted below the batch's route
	r := &http.Request{
		Method: method, URL: &url.URL{Path: path}, RequestURI: path,
		Proto: batch.Proto, ProtoMajor: batch.ProtoMajor, ProtoMinor: batch.ProtoMinor,
		Header: header, Body: io.NopCloser(bytes.NewReader(o.Body)), ContentLength: int64(len(o.Body)),
		Host: batch.Host, RemoteAddr: batch.RemoteAddr, TLS: batch.TLS,
	}
	return r.WithContext(ctx)
}

// recorder is the http.ResponseWriter of an operation.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *recorder) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}

func (a *recorder) WriteHeader(status int) { a.status = status }

func (a *recorder) Write(p []byte) (int, error) { return a.body.Write(p) }

// FlushError succeeds: whether the response arrives is known only when the batch's response is written.
func (a *recorder) FlushError() error { return nil }

// SetReadDeadline and SetWriteDeadline do nothing, because there is no connection. An error per operation
// would cost more than its handler.
func (a *recorder) SetReadDeadline(time.Time) error  { return nil }
func (a *recorder) SetWriteDeadline(time.Time) error { return nil }

func (a *recorder) result() wire.BatchResult {
	result := wire.BatchResult{Status: a.status}
	if body := bytes.TrimSpace(a.body.Bytes()); len(body) > 0 {
		result.Body = body
	}
	result.RetryAfterS, _ = strconv.ParseInt(a.Header().Get("Retry-After"), 10, 64) // 0 for none
	return result
}
