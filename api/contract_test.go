package api_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"

	"github.com/fencelock/fencelock/api"
	"github.com/fencelock/fencelock/api/wire"
)

// contract is openapi.yaml, made stricter than it is for clients: a client has
// to put up with members that it does not know, a test has not.
type contract struct {
	doc    *openapi3.T
	router routers.Router
}

var loadOnce = sync.OnceValues(func() (*contract, error) {
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("application/yaml", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder(wire.TypeEvents, openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/css", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/javascript", openapi3filter.PlainBodyDecoder)
	openapi3filter.RegisterBodyDecoder("image/svg+xml", openapi3filter.PlainBodyDecoder)
	text, err := os.ReadFile("../openapi.yaml")
	if err != nil {
		return nil, err
	}
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	for _, schema := range doc.Components.Schemas {
		if schema.Value.Type.Is("object") {
			schema.Value.AdditionalProperties = openapi3.AdditionalProperties{Has: new(bool)}
		}
		// kin-openapi validates schemas with references by the rules of 3.0,
		// where {} does not allow null, unless a keyword of 2020-12 occurs.
		schema.Value.Defs = openapi3.Schemas{"2020-12": openapi3.NewSchemaRef("", openapi3.NewSchema())}
	}
	if err := doc.Validate(context.Background()); err != nil {
		return nil, err
	}
	doc.Servers = nil // the tests listen elsewhere
	router, err := gorillamux.NewRouter(doc)
	return &contract{doc: doc, router: router}, err
})

func loadContract(t *testing.T) *contract {
	t.Helper()
	c, err := loadOnce()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// contractTransport holds every exchange against the contract: what the server
// accepts must be a request that the file allows, and every response, refusals
// included, must be one that the file knows for the operation.
type contractTransport struct {
	t        *testing.T
	contract *contract
	next     http.RoundTripper
}

func (c *contractTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	sent, err := readAll(req.Body)
	if err != nil {
		return nil, err
	}
	if len(sent) > 0 {
		req.Body = io.NopCloser(bytes.NewReader(sent))
	}
	resp, err := c.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	got, err := readAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(got))
	if err := c.contract.check(req, sent, resp, got); err != nil {
		c.t.Errorf("%s %s → %d breaks openapi.yaml: %v", req.Method, req.URL.EscapedPath(), resp.StatusCode, err)
	}
	return resp, nil
}

func readAll(body io.ReadCloser) ([]byte, error) {
	if body == nil {
		return nil, nil
	}
	defer func() { _ = body.Close() }()
	return io.ReadAll(body)
}

func (c *contract) check(req *http.Request, sent []byte, resp *http.Response, got []byte) error {
	seen := req.Clone(context.Background())
	seen.URL = oneSegment(req.URL)
	seen.Body = io.NopCloser(bytes.NewReader(sent))
	if req.Method == http.MethodHead {
		seen.Method = http.MethodGet
	}
	route, params, err := c.router.FindRoute(seen)
	if err != nil || resp.StatusCode == http.StatusMisdirectedRequest { // which every operation may answer
		return c.checkUnrouted(resp, got)
	}
	options := &openapi3filter.Options{
		IncludeResponseStatus:             true,
		RejectWhenRequestBodyNotSpecified: true,
		ExcludeResponseBody:               req.Method == http.MethodHead,
		SkipSettingDefaults:               true,
		AuthenticationFunc:                openapi3filter.NoopAuthenticationFunc, // is what authorize_test.go is about
	}
	request := &openapi3filter.RequestValidationInput{Request: seen, PathParams: params, Route: route, Options: options}
	if resp.StatusCode < http.StatusBadRequest {
		if err := openapi3filter.ValidateRequest(context.Background(), request); err != nil {
			return err
		}
	}
	return openapi3filter.ValidateResponse(context.Background(), (&openapi3filter.ResponseValidationInput{
		RequestValidationInput: request,
		Status:                 resp.StatusCode,
		Header:                 resp.Header,
		Options:                options,
	}).SetBodyBytes(got))
}

// checkUnrouted allows what the file's description says of other paths and methods.
func (c *contract) checkUnrouted(resp *http.Response, got []byte) error {
	name := map[int]string{
		http.StatusBadRequest:         "InvalidRequest", // a path that ends where the resource should begin
		http.StatusNotFound:           "NotFound",
		http.StatusMethodNotAllowed:   "MethodNotAllowed",
		http.StatusMisdirectedRequest: "HostNotServed",
	}[resp.StatusCode]
	if name == "" {
		return errors.New("no operation of the file has this path and method")
	}
	if len(got) == 0 && resp.Request.Method == http.MethodHead {
		return nil
	}
	schema := c.doc.Components.Schemas[name].Value
	value, err := openapi3filter.JSONBodyDecoder(bytes.NewReader(got), nil, nil, nil)
	if err != nil {
		return err
	}
	return schema.VisitJSON(value, openapi3.EnableJSONSchema2020())
}

// oneSegment writes a resource's slashes as %2F, which is the form of a path
// that OpenAPI can express.
func oneSegment(u *url.URL) *url.URL {
	path := u.EscapedPath()
	for _, prefix := range []string{"/locks/", "/guarded/"} {
		rest, ok := strings.CutPrefix(path, prefix)
		if !ok {
			continue
		}
		rest, history := strings.CutSuffix(rest, "/history")
		path = prefix + strings.ReplaceAll(rest, "/", "%2F")
		if history && prefix == "/guarded/" {
			path += "/history"
		}
	}
	copied := *u
	copied.Path, _ = url.PathUnescape(path)
	copied.RawPath = path
	return &copied
}

// operations lists the file's operations as "METHOD /path".
func (c *contract) operations() (list []string) {
	for path, item := range c.doc.Paths.Map() {
		for method := range item.Operations() {
			list = append(list, method+" "+path)
		}
	}
	slices.Sort(list)
	return list
}

func TestRouterAndContractAgree(t *testing.T) {
	// What the router cannot say by itself: the wildcard is the resource, and
	// the history is a suffix of it.
	inFile := map[string][]string{
		"GET /locks/*":    {"GET /locks/{resource}"},
		"DELETE /locks/*": {"DELETE /locks/{resource}"},
		"GET /guarded/*":  {"GET /guarded/{resource}", "GET /guarded/{resource}/history"},
		"PUT /guarded/*":  {"PUT /guarded/{resource}"},
	}
	patterns := newService(t, nil).handler.Patterns()
	var routed []string
	for _, pattern := range patterns {
		if path, ok := strings.CutPrefix(pattern, "HEAD "); ok {
			if !slices.Contains(patterns, "GET "+path) {
				t.Errorf("%s is routed without its GET", pattern)
			}
			continue
		}
		if known, ok := inFile[pattern]; ok {
			routed = append(routed, known...)
		} else {
			routed = append(routed, pattern)
		}
	}
	slices.Sort(routed)
	if file := loadContract(t).operations(); !slices.Equal(routed, file) {
		t.Errorf("the router has\n  %s\nthe file has\n  %s", strings.Join(routed, "\n  "), strings.Join(file, "\n  "))
	}
	for _, pattern := range patterns {
		if path, ok := strings.CutPrefix(pattern, "GET "); ok && !slices.Contains(patterns, "HEAD "+path) {
			t.Errorf("%s has no HEAD", pattern)
		}
	}
}

func TestEveryProblemHasItsPageItsLineAndItsExample(t *testing.T) {
	doc := loadContract(t).doc
	var slugs []string
	for _, kind := range api.Kinds() {
		slugs = append(slugs, kind.Slug)
	}
	slices.Sort(slugs)
	if unique := slices.Compact(slices.Clone(slugs)); len(unique) != len(slugs) {
		t.Errorf("a slug occurs twice: %v", slugs)
	}

	var enum []string
	for _, value := range doc.Components.Schemas["Problem"].Value.Properties["type"].Value.Enum {
		enum = append(enum, strings.TrimPrefix(value.(string), wire.ProblemPrefix))
	}
	slices.Sort(enum)
	var examples []string
	for name := range doc.Components.Examples {
		if !strings.HasPrefix(name, "Lease") {
			examples = append(examples, name)
		}
	}
	slices.Sort(examples)
	files, err := api.ProblemTexts()
	if err != nil {
		t.Fatal(err)
	}
	for i := range files {
		files[i] = strings.TrimSuffix(files[i], ".html")
	}
	slices.Sort(files)
	for what, list := range map[string][]string{"enum in openapi.yaml": enum, "examples in openapi.yaml": examples, "pages": files} {
		if !slices.Equal(list, slugs) {
			t.Errorf("%s: %v\ntable: %v", what, list, slugs)
		}
	}

	s := newService(t, nil)
	for _, slug := range slugs {
		page := s.call("GET", "/problems/"+slug, "").wants(http.StatusOK)
		if !strings.Contains(page.body, "<code>"+slug+"</code>") || !strings.HasPrefix(page.header.Get("Content-Type"), "text/html") {
			t.Errorf("the page of %s does not name it: %s", slug, page.body)
		}
	}
	s.call("GET", "/problems/nonsense", "").wants(http.StatusNotFound).problem("not-found")
}

func TestExamplesAreWhatTheServerSays(t *testing.T) {
	doc := loadContract(t).doc
	for _, kind := range api.Kinds() {
		example := doc.Components.Examples[kind.Slug].Value.Value
		if got := example.(map[string]any)["status"]; got != float64(kind.Status) && got != kind.Status && got != uint64(kind.Status) {
			t.Errorf("%s: the example's status is %v (%T), the table's %d", kind.Slug, got, got, kind.Status)
		}
		if err := doc.Components.Schemas["Problem"].Value.VisitJSON(example, openapi3.EnableJSONSchema2020()); err != nil {
			t.Errorf("%s: the example breaks the schema: %v", kind.Slug, err)
		}
	}
}
