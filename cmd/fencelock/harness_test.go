package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/internal/testenv"
)

// TestMain also runs this program as a candidate.
func TestMain(m *testing.M) {
	if os.Getenv(candidateServers) != "" {
		candidate()
		return
	}
	testenv.Main(m)
}

// command prepares a run of the program with only these variables set.
func command(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	testenv.NeedsServer(t)
	path := testenv.Program(t)
	cmd := exec.Command(path, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = env
	return cmd
}

// process is a running server, with the client that its test uses.
type process struct {
	*testenv.Fencelock // nil if it is reached through something else
	t                  *testing.T
	url                string // of the API
	client             *http.Client
	admin              string // host:port
}

// start runs a server and reads from its log where it listens.
func start(t *testing.T, env ...string) *process {
	t.Helper()
	return startOver(t, "http", http.DefaultClient, env...)
}

func startOver(t *testing.T, scheme string, client *http.Client, env ...string) *process {
	t.Helper()
	p := startUnready(t, scheme, client, env...)
	p.untilReady()
	return p
}

// startUnready starts a server without waiting until it can grant.
func startUnready(t *testing.T, scheme string, client *http.Client, env ...string) *process {
	t.Helper()
	return startCommand(t, scheme, client, command(t, env, "serve"))
}

func anyPorts() []string {
	return []string{"FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0"}
}

func startCommand(t *testing.T, scheme string, client *http.Client, cmd *exec.Cmd) *process {
	t.Helper()
	f := testenv.ServeCommand(t, cmd)
	return &process{Fencelock: f, t: t, url: scheme + "://" + f.Addr(), admin: f.AdminAddr(), client: client}
}

// patience is how long a test waits for an event that must happen, however busy the machine is.
const patience = time.Minute

// soon is the time limit for events that would also happen without the service's help, when a lease of 30 seconds
// ends.
const soon = 25 * time.Second

// exit waits for the end of the process and returns its code.
func (p *process) exit() int {
	p.t.Helper()
	return p.Exit(patience)
}

func (p *process) untilReady() {
	p.t.Helper()
	begun, deadline := time.Now(), time.After(patience)
	for {
		if r, err := p.client.Get(p.url + "/readyz"); err == nil {
			_ = r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-time.After(testenv.PollPause(time.Since(begun))):
		case <-deadline:
			p.t.Fatal("the server does not become ready")
		}
	}
}

// ask sends a request and reads the answer into v, if v is not nil.
func (p *process) ask(v any, method, path, body string, header ...string) *http.Response {
	p.t.Helper()
	resp, err := p.try(p.t.Context(), v, method, path, body, header...)
	if err != nil {
		p.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp
}

// breaks ends whatever lease holds the resource.
func (p *process) breaks(resource string) {
	p.t.Helper()
	p.wants(p.ask(nil, "POST", "/breaks", breakAny(resource)), http.StatusNoContent)
}

// breakAny is the body of a request that breaks whatever lease holds the resource.
func breakAny(resource string) string {
	body, _ := json.Marshal(wire.BreakRequest{Resource: resource, Any: true}) //nolint:errchkjson // strings are always JSON
	return string(body)
}

func (p *process) try(ctx context.Context, v any, method, path, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && v != nil {
		err = json.Unmarshal(text, v)
	}
	return resp, err
}

func (p *process) wants(resp *http.Response, status int) {
	p.t.Helper()
	if resp.StatusCode != status {
		p.t.Fatalf("%s %s answered %d, want %d", resp.Request.Method, resp.Request.URL.Path, resp.StatusCode, status)
	}
}

func (p *process) acquire(body string) (lease wire.Lease) {
	p.t.Helper()
	p.wants(p.ask(&lease, "POST", "/locks", body), http.StatusCreated)
	return lease
}

func (p *process) until(what string, done func() bool) {
	p.t.Helper()
	begun, deadline := time.Now(), time.After(patience)
	for !done() {
		select {
		case <-time.After(testenv.PollPause(time.Since(begun))):
		case <-deadline:
			p.t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

func (p *process) release(lease wire.Lease) {
	p.t.Helper()
	p.wants(p.ask(nil, "DELETE", "/leases/current", "", "Fencelock-Lease: "+lease.LeaseID), http.StatusNoContent)
}

// untilAnswer repeats a request until its status is the one wanted.
func (p *process) untilAnswer(status int, method, path, body string, header ...string) {
	p.t.Helper()
	p.until(method+" "+path+" answers "+strconv.Itoa(status), func() bool {
		return p.ask(nil, method, path, body, header...).StatusCode == status
	})
}

// decided repeats a request until its status is not 503: a busy engine or database may be too late for one request,
// and that decides nothing.
func (p *process) decided(method, path, body string, header ...string) (resp *http.Response) {
	p.t.Helper()
	p.until(method+" "+path+" is decided", func() bool {
		resp = p.ask(nil, method, path, body, header...)
		return resp.StatusCode != http.StatusServiceUnavailable
	})
	return resp
}

// scrape reads /metrics.
func (p *process) scrape() string {
	p.t.Helper()
	resp, err := http.Get("http://" + p.admin + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("/metrics: %d, %v", resp.StatusCode, err)
	}
	return string(text)
}

// dialRaw opens a connection to the server, over TLS if it serves that.
func (p *process) dialRaw() net.Conn {
	p.t.Helper()
	scheme, address, _ := strings.Cut(p.url, "://")
	conn, err := net.Dial("tcp", address)
	if err != nil {
		p.t.Fatal(err)
	}
	if scheme == "https" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	}
	p.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		p.t.Fatal(err)
	}
	return conn
}

func (p *process) sendRaw(conn net.Conn, text string) {
	p.t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		p.t.Fatal(err)
	}
}

// startOverTLS starts a server with a certificate, and without access control.
func startOverTLS(t *testing.T, env ...string) *process {
	t.Helper()
	own := newAuthority(t)
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	own.server(certFile, keyFile)
	return startOver(t, "https", own.client(nil), append(env,
		"FENCELOCK_DATA="+filepath.Join(dir, "fencelock.db"), "FENCELOCK_TLS_CERT_FILE="+certFile, "FENCELOCK_TLS_KEY_FILE="+keyFile)...)
}

// startServers runs servers of the program over the same nodes. Their time limit of a node is long enough for a busy
// machine.
func startServers(t *testing.T, n int, nodes []*testenv.Redis) (servers []*process) {
	t.Helper()
	for i := range n {
		env := []string{redisAddrs(nodes), "FENCELOCK_NODE_DOWN_AFTER=3s"}
		if i == 0 {
			env = append(env, "FENCELOCK_BOOTSTRAP=new")
		}
		servers = append(servers, start(t, env...))
	}
	return servers
}

// redisAddrs returns the addresses of Redis nodes as a variable's value.
func redisAddrs(nodes []*testenv.Redis) string {
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.URL())
	}
	return "FENCELOCK_REDIS_ADDRS=" + strings.Join(addrs, ",")
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// tokenFor makes a bearer token with fencelock token new, and returns it with its line for the file of tokens.
func tokenFor(t *testing.T, file, name string, rules ...string) string {
	t.Helper()
	var out bytes.Buffer
	cmd := command(t, nil, append([]string{"token", "new", "--name", name, "--append", file}, rules...)...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("token new: %v: %s", err, out.String())
	}
	return strings.TrimSpace(out.String())
}

func bearer(secret string) string { return "Authorization: Bearer " + secret }

// as returns the same server, called by another client.
func (p *process) as(client *http.Client) *process {
	return &process{Fencelock: p.Fencelock, t: p.t, url: p.url, admin: p.admin, client: client}
}

func readJSON(resp *http.Response, into any) error {
	defer func() { _ = resp.Body.Close() }()
	return json.NewDecoder(resp.Body).Decode(into)
}

// awaitWaiting waits until n requests wait for the resource.
func (p *process) awaitWaiting(resource string, n int) {
	p.t.Helper()
	testenv.Eventually(p.t, patience, func() error {
		var lock wire.Lock
		resp, err := p.try(p.t.Context(), &lock, "GET", "/locks/"+resource, "")
		switch {
		case err != nil:
			return err
		case resp.StatusCode != http.StatusOK || lock.Waiters != n:
			return fmt.Errorf("status %d, %d wait, want %d", resp.StatusCode, lock.Waiters, n)
		}
		return nil
	})
}
