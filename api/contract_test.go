package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
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
	doc      *openapi3.T
	router   routers.Router
	problems map[string]problemLine // by slug
}

// problemLine is a line of the table in the schema Problem.
type problemLine struct {
	status  int
	members map[string]bool // that it adds; whether they are required
}

// problemTable reads the table in the schema's description.
func problemTable(doc *openapi3.T) map[string]problemLine {
	table := make(map[string]problemLine)
	for line := range strings.Lines(doc.Components.Schemas["Problem"].Value.Description) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 5 || !strings.Contains(cells[1], "`") {
			continue
		}
		status, _ := strconv.Atoi(strings.TrimSpace(cells[2]))
		members := map[string]bool{"type": true, "title": true, "status": true, "detail": true, "request_id": true}
		for cell := range strings.SplitSeq(cells[3], ",") {
			if name := strings.Split(cell, "`"); len(name) == 3 {
				members[name[1]] = !strings.Contains(name[2], "absent")
			}
		}
		table[strings.Trim(cells[1], " `")] = problemLine{status: status, members: members}
	}
	return table
}

// checkProblem holds a problem against the table.
func (c *contract) checkProblem(slug string, status int, problem map[string]any) error {
	line, ok := c.problems[slug]
	if !ok || line.status != status {
		return fmt.Errorf("the table of Problem has no type %q with status %d", slug, status)
	}
	for member, required := range line.members {
		if _, there := problem[member]; required && !there {
			return fmt.Errorf("%s lacks %s", slug, member)
		}
	}
	for member := range problem {
		if _, known := line.members[member]; !known {
			return fmt.Errorf("the table of Problem does not give %s the member %s", slug, member)
		}
	}
	return nil
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
	return &contract{doc: doc, router: router, problems: problemTable(doc)}, err
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
	problem, isProblem := make(map[string]any), resp.Header.Get("Content-Type") == wire.TypeProblem && len(got) > 0
	if isProblem {
		if err := json.Unmarshal(got, &problem); err != nil {
			return err
		}
	}
	kind, _ := problem["type"].(string)
	slug := strings.TrimPrefix(kind, wire.ProblemPrefix)
	if err := c.checkProblem(slug, resp.StatusCode, problem); isProblem && err != nil {
		return err
	}
	route, params, err := c.router.FindRoute(seen)
	if err != nil {
		return c.checkUnrouted(resp, slug)
	}
	if declared := route.Operation.Responses.Status(resp.StatusCode); isProblem && declared != nil {
		if _, named := declared.Value.Content[wire.TypeProblem].Examples[slug]; !named {
			return fmt.Errorf("the operation has no example of the problem %s", slug)
		}
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
func (c *contract) checkUnrouted(resp *http.Response, slug string) error {
	allowed := map[int]string{
		http.StatusBadRequest:         "invalid-request", // a path that ends where the resource should begin
		http.StatusNotFound:           "not-found",
		http.StatusMethodNotAllowed:   "method-not-allowed",
		http.StatusMisdirectedRequest: "host-not-served",
	}[resp.StatusCode]
	if allowed == "" || allowed != slug && resp.Request.Method != http.MethodHead {
		return fmt.Errorf("no operation of the file has this path and method, and it got the problem %q", slug)
	}
	return nil
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
		path = prefix + strings.ReplaceAll(rest, "/", "%2F")
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
	// What the router cannot say by itself: the wildcard is the resource, no
	// more.
	inFile := map[string][]string{
		"GET /locks/*":      {"GET /locks/{resource}"},
		"GET /guarded/*":    {"GET /guarded/{resource}"},
		"POST /guarded/*":   {"POST /guarded/{resource}"},
		"PUT /guarded/*":    {"PUT /guarded/{resource}"},
		"DELETE /guarded/*": {"DELETE /guarded/{resource}"},
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
	for _, kind := range doc.Components.Schemas["ProblemType"].Value.Enum {
		enum = append(enum, strings.TrimPrefix(fmt.Sprint(kind), wire.ProblemPrefix))
	}
	slices.Sort(enum)
	table := slices.Sorted(maps.Keys(loadContract(t).problems))
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
	for what, list := range map[string][]string{"ProblemType": enum, "the table of Problem": table, "examples in openapi.yaml": examples, "pages": files} {
		if !slices.Equal(list, slugs) {
			t.Errorf("%s: %v\nthe server: %v", what, list, slugs)
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

// What the server takes from its configuration has no default in the file: a generated
// client would send that, and so override the configuration and Prefer.
func TestSchemasOfRequestsHaveNoDefaults(t *testing.T) {
	doc := loadContract(t).doc
	for _, name := range []string{"AcquireRequest", "ExtendRequest"} {
		for member, schema := range doc.Components.Schemas[name].Value.Properties {
			if schema.Value.Default != nil {
				t.Errorf("%s.%s has the default %v", name, member, schema.Value.Default)
			}
		}
	}
}

// There is one version: a release is a commit with it in every file that has one.
func TestOneVersion(t *testing.T) {
	text, err := os.ReadFile("../clients/typescript/package.json")
	if err != nil {
		t.Fatal(err)
	}
	var pkg struct {
		Version string `json:"version"`
	}
	if err := json.Unmarshal(text, &pkg); err != nil {
		t.Fatal(err)
	}
	want(t, "the contract's version", loadContract(t).doc.Info.Version, pkg.Version)
}

// TestEveryOperationDeclares holds what is common to all operations.
func TestEveryOperationDeclares(t *testing.T) {
	open := []string{"root", "consoleSlash", "console", "consoleFile", "health", "contract", "problemPage"}
	for path, item := range loadContract(t).doc.Paths.Map() {
		for method, op := range item.Operations() {
			for _, status := range []int{http.StatusMethodNotAllowed, http.StatusMisdirectedRequest, http.StatusInternalServerError} {
				if op.Responses.Status(status) == nil {
					t.Errorf("%s %s does not declare %d", method, path, status)
				}
			}
			for status, response := range op.Responses.Map() {
				if response.Value.Headers[wire.HeaderServer] == nil {
					t.Errorf("%s %s: the answer %s does not declare %s", method, path, status, wire.HeaderServer)
				}
			}
			isOpen := op.Security != nil && len(*op.Security) == 0
			if isOpen != slices.Contains(open, op.OperationID) {
				t.Errorf("%s %s: security: [] is %t", method, path, isOpen)
			}
			if isOpen != (op.Responses.Status(http.StatusUnauthorized) == nil) {
				t.Errorf("%s %s: 401 and security: [] contradict each other", method, path)
			}
			browser := slices.Contains([]string{"/", "/activity", "/console/", "/console", "/console/{file}", "/openapi.yaml", "/problems/{type}"}, path)
			want(t, path+" is for browsers", slices.Equal(op.Tags, []string{"browser"}), browser)
		}
	}
}
