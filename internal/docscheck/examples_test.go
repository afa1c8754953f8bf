package docscheck

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/fencelock/fencelock/internal/testenv"
)

// The examples of the site's API page: those in Go compile, and the others succeed on a
// server, under a lease of orders/42 and with a record of that name.
func TestAPIExamples(t *testing.T) {
	testenv.Long(t, "an example of the site's API page that fails")
	testenv.NeedsServer(t)
	root := moduleRoot(t)
	var examples map[string]map[string]string
	if err := yaml.Unmarshal([]byte(text(t, filepath.Join(root, "site", "data", "examples.yaml"))), &examples); err != nil || len(examples) < 10 {
		t.Fatalf("site/data/examples.yaml has %d examples: %v", len(examples), err)
	}
	contract := text(t, filepath.Join(root, "openapi.yaml"))
	r := newReader(t, root, filepath.Dir(testenv.Program(t)))
	r.serve(t, Block{Text: "FENCELOCK_MAX_TTL=1h fencelock serve\n"})
	goFiles := map[string]string{}
	for operation, languages := range examples {
		if !strings.Contains(contract, "operationId: "+operation+"\n") {
			t.Errorf("openapi.yaml has no operation %s", operation)
		}
		for language, code := range languages {
			if language == "b_go" {
				goFiles[operation] = goFile(Block{Lang: "go", Given: "ctx context.Context, locks *client.Client, lease *client.Lease, leaseID string", Text: used(code)})
				continue
			}
			cmd := r.example(t, language, code, operation != "acquire")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s\n%s", operation, language, err, code, out)
			}
		}
	}
	if said := compile(t, goFiles); said != "" {
		t.Errorf("go build:\n%s", said)
	}
	for language, code := range map[string]string{
		"a_curl": "curl -sS $api/leases/current -H 'Fencelock-Lease: none'", "c_python": "client.lease('none')", "d_typescript": "await locks.lease('none');",
	} {
		if out, err := r.example(t, language, code, true).CombinedOutput(); err == nil {
			t.Errorf("an example in %s that fails is not found: %s", language, out)
		}
	}
}

// example is one as a program that has what the examples use.
func (r *reader) example(t *testing.T, language, code string, held bool) *exec.Cmd {
	t.Helper()
	r.call(t, http.MethodPost, "/breaks", `{"resource":"orders/42","any":true}`, nil)
	var lease struct {
		ID    string `json:"lease_id"`
		Token int64  `json:"fencing_token"`
	}
	if held {
		if err := json.Unmarshal(r.call(t, http.MethodPost, "/locks", `{"resource":"orders/42","ttl_ms":3600000}`, nil), &lease); err != nil || lease.ID == "" {
			t.Fatalf("no lease: %v", err)
		}
		r.call(t, http.MethodPut, "/guarded/orders/42", `{}`, map[string]string{"Fencing-Token": fmt.Sprint(lease.Token)})
	}
	dir := t.TempDir()
	var cmd *exec.Cmd
	switch language {
	case "a_curl": // 28: the time limit of a stream
		cmd = exec.CommandContext(t.Context(), "bash", "-c", "curl() { command curl --fail-with-body \"$@\"; }\n"+strings.TrimSpace(code)+" || [ $? -eq 28 ]")
	case "c_python":
		file := filepath.Join(dir, "example.py")
		writeFile(t, file, []byte("import os\nfrom fencelock import Client\n\nclient, lease_id = Client(os.environ['api']), os.environ['lease']\n"+code))
		cmd = exec.CommandContext(t.Context(), testenv.Pythons(t)[0].Path, file)
	default:
		file := filepath.Join(dir, "example.mjs")
		library := filepath.Join(r.root, "clients", "typescript", "dist", "esm", "index.js")
		writeFile(t, file, []byte(fmt.Sprintf("import { Client } from %q;\nconst locks = new Client(process.env.api), leaseId = process.env.lease;\n"+
			"const lease = leaseId ? await locks.lease(leaseId) : undefined;\n%s\nawait locks.close();\n", library, code)))
		cmd = exec.CommandContext(t.Context(), testenv.Node(t), file)
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "api="+r.service, "lease="+lease.ID, fmt.Sprintf("token=%d", lease.Token), "PYTHONPATH="+filepath.Join(r.root, "clients", "python", "src"))
	return cmd
}

// call sends a request whose refusal does not matter.
func (r *reader) call(t *testing.T, method, path, body string, header map[string]string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, r.service+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	var read bytes.Buffer
	if _, err := read.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	return read.Bytes()
}

var declared = regexp.MustCompile(`(?m)^(\w+(?:, \w+)*) := `)

// used is Go code whose variables all count as used.
func used(code string) string {
	for _, match := range declared.FindAllStringSubmatch(code, -1) {
		blanks := strings.Repeat("_, ", strings.Count(match[1], ",")) + "_"
		code += blanks + " = " + match[1] + "\n"
	}
	return code
}
