package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/fencelock/fencelock/api/wire"
)

// buffer takes a buffer from the pool; recycle brings it back.
func (s *Server) buffer() *bytes.Buffer {
	if buf, ok := s.bodies.Get().(*bytes.Buffer); ok {
		return buf
	}
	return new(bytes.Buffer)
}

func (s *Server) recycle(buf *bytes.Buffer) {
	if buf.Cap() <= maxPooledBodyBytes { // a rare giant is left to the collector
		buf.Reset()
		s.bodies.Put(buf)
	}
}

// Header values of nearly every answer, which share their memory. A slice that is full
// is copied by whoever appends to it.
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

// write answers with body as JSON. Nothing that this API says is worth keeping
// in a cache: it is outdated as soon as it is read, and some of it is secret.
func (s *Server) write(w http.ResponseWriter, status int, contentType string, body any) error {
	buf := s.buffer()
	defer s.recycle(buf)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body); err != nil {
		return err
	}
	w.Header()["Cache-Control"] = noStore
	return writeBytes(w, status, contentType, buf.Bytes())
}

func writeBytes(w http.ResponseWriter, status int, contentType string, body []byte) error {
	h := w.Header()
	h["Content-Type"] = contentTypes(contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h["X-Content-Type-Options"] = noSniff
	w.WriteHeader(status)
	_, err := w.Write(body)
	return err
}

func noContent(w http.ResponseWriter) error {
	w.Header()["Cache-Control"] = noStore
	w.WriteHeader(http.StatusNoContent)
	return nil
}
