package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// fieldBody names the body as a whole in an invalid-request problem.
const fieldBody = "body"

// readBody reads the whole JSON body into buf. An empty one is refused unless
// optional. Errors: errMediaType, errBodyTooLarge, errBodyTimeout, *lockcore.FieldError.
func readBody(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer, optional bool) error {
	if r.ContentLength > MaxBodyBytes {
		return errBodyTooLarge
	}
	if r.ContentLength != 0 {
		if err := readLimited(w, r, buf); err != nil {
			return err
		}
	}
	switch {
	case buf.Len() == 0 && optional:
		return nil
	case buf.Len() == 0:
		return badField(fieldBody, "is empty: JSON is expected")
	case !isJSON(r.Header.Get("Content-Type")):
		return errMediaType
	}
	return nil
}

// readLimited reads a body to its end. Then it removes the deadline that
// ServeHTTP set, since net/http reads on to notice a caller that hangs up.
func readLimited(w http.ResponseWriter, r *http.Request, buf *bytes.Buffer) error {
	body := io.LimitedReader{R: r.Body, N: MaxBodyBytes + 1}
	_, err := buf.ReadFrom(&body)
	if err == nil && body.N > 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		w.Header().Set("Connection", "close")
		return errBodyTimeout
	case err != nil:
		return badField(fieldBody, "could not be read: it ended early or is badly encoded")
	case buf.Len() > MaxBodyBytes:
		return errBodyTooLarge
	}
	return nil
}

func isJSON(contentType string) bool {
	if contentType == wire.TypeJSON { // nearly always
		return true
	}
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != wire.TypeJSON {
		return false
	}
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8")
}

// pathResource is the resource that the path names after prefix.
func pathResource(r *http.Request, prefix string) (string, error) {
	return namedResource(r, strings.TrimPrefix(r.URL.EscapedPath(), prefix))
}

// namedResource is the resource of a part of the request's path: percent-decoded once,
// slashes as they are or encoded. A proxy that normalises paths makes another resource
// of some names, "b" of "a/../b", and this server sees only the result. So such a name
// must be in a header as well, and a header that is sent must agree with the path. The
// error is a *lockcore.FieldError.
func namedResource(r *http.Request, escaped string) (string, error) {
	resource, err := unescapeResource("resource", escaped)
	if err != nil {
		return "", err
	}
	sent, err := header(r, wire.HeaderResource)
	switch {
	case err != nil:
		return "", err
	case len(r.Header[wire.HeaderResource]) == 0 && changesInPaths(resource):
		return "", badField("resource", `has a path that proxies may change: send it percent-encoded in the header `+wire.HeaderResource+
			` as well, or choose a name without "." and ".." between slashes, two slashes in a row, a slash at either end, "\", or "%" before two hexadecimal digits`)
	case len(r.Header[wire.HeaderResource]) == 0:
		return resource, nil
	}
	repeated, err := unescapeResource(wire.HeaderResource, sent)
	if err == nil && repeated != resource {
		err = badField(wire.HeaderResource, "names a different resource from the path: a proxy changed the path; configure it to pass paths unchanged (nginx: proxy_pass without a path)")
	}
	return resource, err
}

func unescapeResource(field, escaped string) (string, error) {
	resource, err := url.PathUnescape(escaped)
	if err != nil {
		return "", badField(field, "is not correctly percent-encoded")
	}
	return resource, lockcore.ValidateText(field, resource, 1)
}

// changesInPaths reports whether a proxy that normalises or decodes paths may make
// another resource of the name.
func changesInPaths(resource string) bool {
	decoded, err := url.PathUnescape(resource)
	return path.Clean("/"+resource) != "/"+resource || strings.Contains(resource, `\`) || err == nil && decoded != resource
}

// header gives the only value of a header, "" if it is not there.
func header(r *http.Request, name string) (string, error) {
	switch values := r.Header[name]; len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	default:
		return "", badField(name, "must be sent once")
	}
}

// idempotencyKey reads the Idempotency-Key header; "" if it is not there.
func idempotencyKey(r *http.Request) (string, error) {
	key, err := header(r, wire.HeaderIdempotencyKey)
	if err != nil || len(r.Header[wire.HeaderIdempotencyKey]) == 0 {
		return "", err
	}
	if len(key) == 0 || len(key) > MaxIdempotencyKey || !visible(key) {
		return "", badField(wire.HeaderIdempotencyKey, fmt.Sprintf("must be 1 to %d visible ASCII characters", MaxIdempotencyKey))
	}
	return key, nil
}

// visible says whether a text has visible ASCII characters only.
func visible(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c < '!' || c > '~' }) < 0
}

// preferredWait reads wait=N from Prefer (RFC 7240), in seconds; a longer wait than
// MaxWait becomes that. Other preferences are ignored, and the first wait counts.
func preferredWait(r *http.Request) (wait time.Duration, found bool, err error) {
	for _, line := range r.Header[wire.HeaderPrefer] {
		for preference := range strings.SplitSeq(line, ",") {
			preference, _, _ = strings.Cut(preference, ";")
			if name, value, _ := strings.Cut(preference, "="); strings.EqualFold(strings.TrimSpace(name), "wait") {
				wait, err = waitSeconds(strings.Trim(strings.TrimSpace(value), `"`))
				return wait, err == nil, err
			}
		}
	}
	return 0, false, nil
}

func waitSeconds(digits string) (time.Duration, error) {
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return 0, badField(wire.HeaderPrefer, "must ask to wait a whole number of seconds")
	}
	seconds, err := strconv.ParseInt(digits, 10, 32)
	if err != nil { // too many digits for a longer wait than all
		return lockcore.MaxWait, nil //nolint:nilerr // it is cut like any that is too long
	}
	return min(time.Duration(seconds)*time.Second, lockcore.MaxWait), nil
}

// The query parameters of the operations that have any.
var (
	listParameters    = []string{"prefix", "search", "limit", "cursor"}
	recordParameters  = []string{"prefix", "limit", "cursor"}
	historyParameters = []string{"resource", "limit", "cursor"}
	eventParameters   = []string{"prefix", "resource", "recent"}
)

// onlyParameters refuses a request with another query parameter before h acts: one that
// ignores a misspelt parameter does something else than was asked for.
func onlyParameters(h handler, names []string) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		if r.URL.RawQuery != "" {
			if _, err := query(r, names...); err != nil {
				return err
			}
		}
		return h(w, r)
	}
}

// query reads the query's parameters, each at most once and none but those named.
func query(r *http.Request, names ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, badField("query", "is not correctly encoded")
	}
	params := make(map[string]string, len(names))
	for _, name := range names {
		switch given := values[name]; len(given) {
		case 0:
		case 1:
			params[name] = given[0]
		default:
			return nil, badField(name, "must be given once")
		}
		delete(values, name)
	}
	if len(values) == 0 {
		return params, nil
	}
	unknown := slices.Min(slices.Collect(maps.Keys(values)))
	if unknown == "" {
		return nil, badField("query", "has a parameter without a name")
	}
	return nil, badField(clip(unknown), "is not a parameter of this request")
}

// pageLimit reads the limit parameter.
func pageLimit(params map[string]string) (int, error) {
	text, ok := params["limit"]
	if !ok {
		return DefaultPage, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n < 1 || n > MaxPage {
		return 0, badField("limit", fmt.Sprintf("must be a whole number from 1 to %d", MaxPage))
	}
	return int(n), nil
}
