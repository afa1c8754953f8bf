package api

import (
	"cmp"
	"slices"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/edge"
	"github.com/fencelock/fencelock/lockcore"
)

// What the tests in package api_test see of the inside.

// Kind is a line of the problem table.
type Kind struct {
	Slug   string
	Status int
	Title  string
	Detail string // "" where the error itself gives it
}

// dynamic are the kinds whose detail is made by refusal.details.
var dynamic = []error{
	errField, edge.ErrHost, errForbidden, lockcore.ErrNoQuorum, lockcore.ErrOtherLease, access.ErrRequestLimit, access.ErrWaiterLimit, access.ErrRecordLimit, access.ErrLeaseLimit,
}

// Kinds lists the problem table.
func Kinds() (kinds []Kind) {
	for _, k := range problems() {
		kind := Kind{Slug: k.slug, Status: k.status, Title: k.title, Detail: cmp.Or(k.detail, k.is.Error())}
		if slices.Contains(dynamic, k.is) {
			kind.Detail = ""
		}
		kinds = append(kinds, kind)
	}
	return kinds
}

// ProblemTexts lists the files that explain the problems.
func ProblemTexts() ([]string, error) {
	entries, err := problemTexts.ReadDir("problems")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}

// ProblemText is what explains a problem.
func ProblemText(slug string) (string, error) {
	text, err := problemTexts.ReadFile("problems/" + slug + ".html")
	return string(text), err
}

// DecodeAcquire decodes and checks the body of POST /locks.
func DecodeAcquire(body []byte, limits lockcore.Limits) (lockcore.Request, error) {
	req, _, err := decodeAcquire(body)
	if err != nil {
		return req, err
	}
	req.Caller = lockcore.Everyone
	err = limits.Check(&req)
	return req, err
}

// DecodeValue is the decoder of PUT /guarded/….
func DecodeValue(body []byte) ([]byte, error) { return decodeValue(body) }

// ParseResource reads a resource from a path.
func ParseResource(escaped string) (string, error) { return unescapeResource("resource", escaped) }

// Patterns lists the router's routes as "METHOD /pattern".
func (s *Server) Patterns() (patterns []string) {
	for _, route := range s.router.Routes() {
		for method := range route.Handlers {
			patterns = append(patterns, method+" "+route.Pattern)
		}
	}
	return patterns
}

// Decisions lists who may call what, in words, by "METHOD /pattern".
func Decisions() map[string]string {
	list := make(map[string]string)
	for route, d := range decisions() {
		list[route] = d.needs
	}
	return list
}

// Baseless lists the routes whose callers need a right over something that no subject reads:
// their right would be judged over the resource "".
func Baseless() (routes []string) {
	for route, d := range decisions() {
		if d.right != access.None && !d.every && d.subject == nil {
			routes = append(routes, route)
		}
	}
	return routes
}

// BodyTimeout is how long a body may take to arrive.
const BodyTimeout = bodyTimeout

// WatchAfter is how long a request waits before its connection is watched.
const WatchAfter = watchAfter
