package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"github.com/fencelock/fencelock/api/wire"
)

// unbatched serves the operations of a batch one after the other, each as the single request that does
// the same, so that faults and rules of single requests apply to batches, too. If a fault yields no
// response, or a response that is not the service's, the whole batch gets it. That is exact, because a
// client that meets faults has only one call at a time.
func unbatched(single http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/locks/batch" {
			single(w, r)
			return
		}
		var batch wire.Batch
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil || len(batch.Operations) == 0 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		var all wire.BatchResults
		for _, o := range batch.Operations {
			one := &resultWriter{ResponseWriter: w}
			single(one, operation(r, o))
			if !one.isResult() {
				return
			}
			all.Results = append(all.Results, one.result())
		}
		if err := json.NewEncoder(w).Encode(all); err != nil {
			panic(http.ErrAbortHandler) // the response is cut off: the client has no answer
		}
	}
}

// operation returns the single request that does the same as an operation of a batch.
func operation(batch *http.Request, o wire.BatchOperation) *http.Request {
	r := batch.Clone(batch.Context())
	switch o.Operation {
	case wire.OperationAcquire:
		r.URL.Path = "/locks"
		r.Header.Set(wire.HeaderIdempotencyKey, o.IdempotencyKey)
	case wire.OperationExtend:
		r.URL.Path = "/leases/current/extend"
		r.Header.Set(wire.HeaderLease, o.LeaseID)
	case wire.OperationRelease:
		r.Method, r.URL.Path = http.MethodDelete, "/leases/current"
		r.Header.Set(wire.HeaderLease, o.LeaseID)
	}
	r.Body = io.NopCloser(bytes.NewReader(o.Body))
	return r
}

// resultWriter turns the response to a single operation into the response to the batch. A response that
// is not the service's (a proxy's page, a redirect) becomes the response to the batch itself.
type resultWriter struct {
	http.ResponseWriter

	status int
	body   bytes.Buffer
}

func (w *resultWriter) WriteHeader(status int) { w.status = status }

func (w *resultWriter) Write(p []byte) (int, error) { return w.body.Write(p) }

// Unwrap lets http.ResponseController reach the connection, which it cuts.
func (w *resultWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// isResult reports whether the response can be a result within a batch. A response as from a proxy
// cannot: it is sent as the response to the whole batch.
func (w *resultWriter) isResult() bool {
	h := w.Header()
	switch {
	case w.status == 0: // there is no response
		return false
	case h.Get("Content-Type") == "text/html" || h.Get("Location") != "":
		w.ResponseWriter.WriteHeader(w.status)
		_, _ = w.ResponseWriter.Write(w.body.Bytes())
		return false
	}
	return true
}

// result returns the response as a result within a batch, without the headers that a batch does not
// have.
func (w *resultWriter) result() wire.BatchResult {
	h := w.Header()
	result := wire.BatchResult{Status: w.status, Body: w.body.Bytes()}
	result.RetryAfterS, _ = strconv.ParseInt(h.Get("Retry-After"), 10, 64) // 0 for none
	h.Del("Retry-After")
	h.Del("Content-Length")
	h.Set("Content-Type", wire.TypeJSON)
	return result
}
