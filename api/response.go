package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/fencelock/fencelock/api/wire"
)

// buffer takes a buffer from the pool; recycle returns it.
func (s *Server) buffer() *bytes.Buffer {
	if buf, ok := s.bodies.Get().(*bytes.Buffer); ok {
		return buf
	}
	return new(bytes.Buffer)
}

func (s *Server) recycle(buf *bytes.Buffer) {
	if buf.Cap() <= maxPooledBodyBytes { // a rare large buffer is left to the garbage collector
		buf.Reset()
		s.bodies.Put(buf)
	}
}

// Values of headers that most responses have. They share this memory: append copies them, because the
// slices have no spare capacity.
//
//nolint:gochecknoglobals // constants in all but name
var (
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
	jsonBody    = []string{wire.TypeJSON}
	ofThisLease = []string{currentLease}
)

func contentTypes(contentType string) []string {
	if contentType == wire.TypeJSON {
		return jsonBody
	}
	return []string{contentType}
}

// write sends body as a JSON response. No response may be cached: it is outdated as soon as it is read, and
// some responses are secret.
func (s *Server) write(w *exchange, status int, contentType string, body any) error {
	buf := s.buffer()
	defer s.recycle(buf)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return err
	}
	if status < http.StatusBadRequest && buf.Len() > smallBody {
		if err := w.expense.cover(2 * int64(buf.Len())); err != nil { // a buffer that grows has up to twice as much
			return err
		}
	}
	w.Header()["Cache-Control"] = noStore
	return writeBytes(w, status, contentType, buf.Bytes())
}

func writeBytes(w *exchange, status int, contentType string, body []byte) error {
	h := w.Header()
	h["Content-Type"] = contentTypes(contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h["X-Content-Type-Options"] = noSniff
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err
}

func noContent(w *exchange) error {
	w.Header()["Cache-Control"] = noStore
	w.WriteHeader(http.StatusNoContent)
	return nil
}
