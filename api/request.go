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

// readBody reads the whole JSON body into buf. It refuses an empty body unless optional is true. Errors:
// errMediaType, errBodyTooLarge, errBodyTimeout, *lockcore.FieldError.
func readBody(w *exchange, r *http.Request, buf *bytes.Buffer, optional bool) error {
	if r.ContentLength > MaxBodyBytes {
		return errBodyTooLarge
	}
	if r.ContentLength != 0 {
		length := r.ContentLength
		if length < 0 {
			length = MaxBodyBytes
		}
		if err := w.expense.take(2 * length); err != nil {
			return err
		}
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

// readLimited reads a body to its end. Then it removes the deadline that ServeHTTP set, because net/http
// continues to read in order to notice a caller that hangs up.
func readLimited(w *exchange, r *http.Request, buf *bytes.Buffer) error {
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
	if contentType == wire.TypeJSON { // the usual case
		return true
	}
	mediaType, params, err := mime.ParseMediaType(contentType)
	if err != nil || mediaType != wire.TypeJSON {
		return false
	}
	charset, ok := params["charset"]
	return !ok || strings.EqualFold(charset, "utf-8")
}

// pathResource returns the resource that follows prefix in the path.
func pathResource(r *http.Request, prefix string) (string, error) {
	return namedResource(r, strings.TrimPrefix(r.URL.EscapedPath(), prefix))
}

// namedResource decodes a resource from a part of the request's path: it is percent-decoded once, and its
// slashes may be literal or encoded. A proxy that normalises paths turns some names into other resources,
// for example "a/../b" into "b", and this server sees only the result. So such a name must also be in a
// header, and a header must agree with the path. The error is a *lockcore.FieldError.
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

// changesInPaths reports whether a proxy that normalises or decodes paths may turn the name into another
// resource.
func changesInPaths(resource string) bool {
	decoded, err := url.PathUnescape(resource)
	return path.Clean("/"+resource) != "/"+resource || strings.Contains(resource, `\`) || err == nil && decoded != resource
}

// header returns the only value of a header, "" if it is absent.
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

// idempotencyKey returns the Idempotency-Key header, "" if it is absent.
func idempotencyKey(r *http.Request) (string, error) {
	key, err := header(r, wire.HeaderIdempotencyKey)
	if err != nil || len(r.Header[wire.HeaderIdempotencyKey]) == 0 {
		return "", err
	}
	if len(key) == 0 || len(key) > maxIdempotencyKey || !visible(key) {
		return "", badField(wire.HeaderIdempotencyKey, fmt.Sprintf("must be 1 to %d visible ASCII characters", maxIdempotencyKey))
	}
	return key, nil
}

// visible reports whether a text contains only visible ASCII characters.
func visible(text string) bool {
	return strings.IndexFunc(text, func(c rune) bool { return c < '!' || c > '~' }) < 0
}

// preferredWait reads wait=N from Prefer (RFC 7240), in seconds, and limits it to MaxWait. It ignores other
// preferences, and any wait after the first.
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
	if err != nil { // too many digits: longer than every limit
		return lockcore.MaxWait, nil //nolint:nilerr // limited like any other long wait
	}
	return min(time.Duration(seconds)*time.Second, lockcore.MaxWait), nil
}

// The query parameters of each operation that has some.
var (
	listParameters    = []string{"prefix", "search", "limit", "cursor"}
	blockedParameters = []string{"name"}
	recordParameters  = []string{"prefix", "limit", "cursor"}
	historyParameters = []string{"resource", "limit", "cursor"}
	eventParameters   = []string{"prefix", "resource", "recent"}
)

// onlyParameters refuses a request with any other query parameter before h acts. If the server ignored a
// misspelt parameter, it would do something that the caller did not request.
func onlyParameters(h handler, names []string) handler {
	return func(w *exchange, r *http.Request) error {
		if r.URL.RawQuery != "" {
			if _, err := query(r, names...); err != nil {
				return err
			}
		}
		return h(w, r)
	}
}

// query reads the query's parameters. Each may occur once, and other parameters are refused.
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
		return defaultPage, nil
	}
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n < 1 || n > MaxPage {
		return 0, badField("limit", fmt.Sprintf("must be a whole number from 1 to %d", MaxPage))
	}
	return int(n), nil
}
