// Package rawhttp is an HTTP/1.1 client that uses hardly any processor time. The caller makes the
// bytes of the requests, responses are parsed in place, and a connection has one request under
// way. [Conn] blocks a goroutine; [Drive] runs any number of connections on one thread.
//
// It trusts the server, and supports only the HTTP that the benchmarked services send.
package rawhttp

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// MaxHead and MaxBody bound the head and the body of a response, in bytes.
const (
	MaxHead = 16 << 10
	MaxBody = 1 << 20
)

// errIncomplete says that part of the response has not arrived yet.
var errIncomplete = errors.New("answer is incomplete")

// Response is a response. Its bytes belong to the connection, and are valid until the next
// request.
type Response struct {
	Status int
	head   []byte // the header lines, each with its line break
	Body   []byte
}

// Header returns the value of a header, or nil.
func (r *Response) Header(name string) []byte {
	for rest := r.head; len(rest) > 0; {
		var line []byte
		line, rest, _ = bytes.Cut(rest, crlf)
		key, value, ok := bytes.Cut(line, colon)
		if ok && len(key) == len(name) && bytes.EqualFold(key, []byte(name)) {
			return bytes.TrimSpace(value)
		}
	}
	return nil
}

var (
	crlf    = []byte("\r\n")
	headEnd = []byte("\r\n\r\n")
	colon   = []byte(":")
)

// parse reads one response from the front of buf and returns its length in bytes. The error is
// errIncomplete if more bytes must arrive.
func parse(buf []byte) (Response, int, error) {
	end := bytes.Index(buf, headEnd)
	if end < 0 {
		return Response{}, 0, tooLong(len(buf), MaxHead)
	}
	status, err := parseStatus(buf[:end])
	if err != nil {
		return Response{}, 0, err
	}
	lineEnd := bytes.Index(buf, crlf)
	r := Response{Status: status, head: buf[lineEnd+2 : end+2]}
	start := end + len(headEnd)
	length, err := r.readBody(buf[start:])
	return r, start + length, err
}

// tooLong returns errIncomplete, or another error if the limit is exceeded already.
func tooLong(have, limit int) error {
	if have > limit {
		return fmt.Errorf("an answer of more than %d bytes", limit)
	}
	return errIncomplete
}

// parseStatus reads "HTTP/1.1 201 Created".
func parseStatus(head []byte) (int, error) {
	const begin = "HTTP/1.1 "
	if len(head) < len(begin)+3 || string(head[:len(begin)]) != begin {
		return 0, fmt.Errorf("not an HTTP/1.1 answer: %.40q", head)
	}
	status, err := strconv.Atoi(string(head[len(begin) : len(begin)+3]))
	if err != nil || status < 200 || status > 599 {
		return 0, fmt.Errorf("not a final status: %.40q", head)
	}
	return status, nil
}

// readBody sets the body and returns its length in buf.
func (r *Response) readBody(buf []byte) (int, error) {
	if r.Status == http.StatusNoContent || r.Status == http.StatusNotModified {
		return 0, nil
	}
	if bytes.EqualFold(r.Header("Transfer-Encoding"), []byte("chunked")) {
		return r.readChunks(buf)
	}
	length, err := strconv.Atoi(string(r.Header("Content-Length")))
	if err != nil || length < 0 || length > MaxBody {
		return 0, fmt.Errorf("an answer without a usable length: %q", r.Header("Content-Length"))
	}
	if len(buf) < length {
		return 0, errIncomplete
	}
	r.Body = buf[:length]
	return length, nil
}

// readChunks joins the chunks of a body. It needs another buffer only if there are several
// chunks.
func (r *Response) readChunks(buf []byte) (int, error) {
	r.Body = nil
	for at := 0; ; {
		line, _, ok := bytes.Cut(buf[at:], crlf)
		if !ok {
			return 0, tooLong(len(buf)-at, 64)
		}
		size, err := strconv.ParseUint(string(line), 16, 32)
		if err != nil || size > MaxBody {
			return 0, fmt.Errorf("not the size of a chunk: %.20q", line)
		}
		at += len(line) + 2
		next := at + int(size) + 2
		if len(buf) < next {
			return 0, errIncomplete
		}
		if string(buf[next-2:next]) != "\r\n" {
			return 0, errors.New("a chunk that does not end where it should")
		}
		if size == 0 {
			return next, nil
		}
		r.Body = joined(r.Body, buf[at:next-2])
		at = next
	}
}

// joined appends second to first. If first is nil, it returns second without copying.
func joined(first, second []byte) []byte {
	if first == nil {
		return slices.Clip(second)
	}
	return append(first, second...)
}
