package conformance

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strconv"

	"github.com/fencelock/fencelock/api/wire"
)

// unbatched serves a batch of one operation as the single request that does the same, so
// that faults and rules of single requests are those of batches. A client that is under test has
// one call at a time.
func unbatched(single http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/locks/batch" {
			single(w, r)
			return
		}
		var batch wire.Batch
		if err := json.NewDecoder(r.Body).Decode(&batch); err != nil || len(batch.Operations) != 1 {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		result := &resultWriter{ResponseWriter: w}
		single(result, operation(r, batch.Operations[0]))
		result.finish()
	}
}

// operation is the request of its own.
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

// resultWriter makes the answer to a batch of the answer to its operation. What is not the service's
// is the answer to the batch: a proxy's page, a redirect.
type resultWriter struct {
	http.ResponseWriter

	status int
	body   bytes.Buffer
}

func (w *resultWriter) WriteHeader(status int) { w.status = status }

func (w *resultWriter) Write(p []byte) (int, error) { return w.body.Write(p) }

// Unwrap is for http.ResponseController, which cuts connections.
func (w *resultWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *resultWriter) finish() {
	h := w.Header()
	switch {
	case w.status == 0: // there is no response
		return
	case h.Get("Content-Type") == "text/html" || h.Get("Location") != "":
		w.ResponseWriter.WriteHeader(w.status)
		_, _ = w.ResponseWriter.Write(w.body.Bytes())
		return
	}
	result := wire.BatchResult{Status: w.status, Body: w.body.Bytes()}
	result.RetryAfterS, _ = strconv.ParseInt(h.Get("Retry-After"), 10, 64) // 0 for none
	h.Del("Retry-After")
	h.Del("Content-Length")
	h.Set("Content-Type", wire.TypeJSON)
	if err := json.NewEncoder(w.ResponseWriter).Encode(wire.BatchResults{Results: []wire.BatchResult{result}}); err != nil {
		panic(http.ErrAbortHandler) // the response is cut off: the client has no answer
	}
}
