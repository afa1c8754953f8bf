package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/api/access"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/internal/testenv"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t, next: 1}
	cert := &x509.Certificate{
		Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	_, a.key = a.sign(cert)
	return a
}

// sign makes a certificate, good for an hour unless it says something else, and its key.
func (a *authority) sign(cert *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	cert.SerialNumber = big.NewInt(a.next)
	a.next++
	cert.NotBefore = time.Now().Add(-2 * time.Hour)
	if cert.NotAfter.IsZero() {
		cert.NotAfter = time.Now().Add(time.Hour)
	}
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = cert, key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	signed, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	if a.cert == nil {
		a.cert = signed
	}
	return signed, key
}

// client makes a client that trusts the authority and sends cert, if there is one.
func (a *authority) client(cert *x509.Certificate) *http.Client {
	a.t.Helper()
	config := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	config.RootCAs.AddCert(a.cert)
	if cert != nil {
		cert.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
		signed, key := a.sign(cert)
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { // whoever asks
			return &tls.Certificate{Certificate: [][]byte{signed.Raw}, PrivateKey: key}, nil
		}
	}
	transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}
	a.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// server writes a server's certificate and key.
func (a *authority) server(certFile, keyFile string) *x509.Certificate {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	writeFile(a.t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	writeFile(a.t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})))
	return cert
}

// The commands in the comment of the example overlay work as they are written, and leave no placeholder in its files.
func TestOverlayCommandsWork(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("../../deploy/kubernetes/overlays/example")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for line := range strings.Lines(string(text)) {
		if command, ok := strings.CutPrefix(line, "#   "); ok && !strings.HasPrefix(command, "kubectl") && !strings.HasPrefix(command, "- ") && !strings.HasPrefix(command, " ") {
			script.WriteString(command)
		}
	}
	run := func(text string) string {
		cmd := exec.Command("bash", "-e", "-c", text)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(testenv.Program(t))+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if err != nil {
			return string(out) + err.Error()
		}
		return ""
	}
	if failed := run(script.String()); failed != "" {
		t.Fatalf("%s\n%s", script.String(), failed)
	}
	if _, err := access.Open(filepath.Join(dir, "access.txt"), nil); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"redis-addrs", "users.acl"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || strings.Contains(string(text), "PASSWORD") || strings.Contains(string(text), "-SHA256") {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
	}
	before, err := os.ReadFile(filepath.Join(dir, "worker.token"))
	if info, errStat := os.Stat(filepath.Join(dir, "worker.token")); err != nil || errStat != nil || info.Mode() != 0o600 || !strings.HasPrefix(string(before), "flk_") {
		t.Fatalf("worker.token: %v, %v, %q", err, errStat, before)
	}
	for _, again := range []string{"--out worker.token", "--out other.token"} {
		if failed := run("fencelock token new --name worker --append access.txt " + again); failed == "" {
			t.Errorf("a name that exists got another token with %s", again)
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, "worker.token")); err != nil || !bytes.Equal(after, before) {
		t.Errorf("a failure changed the token: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "other.token")); err == nil {
		t.Error("a failure left a token that no line knows")
	}
}

func TestTokenNew(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	worker := tokenFor(t, file, "worker", "--acquire", "orders/", "--acquire", "a b/", "--read", "*", "--none", "orders/secret/", "--requests", "1000", "--waiters", "5", "--held", "7")
	boss := tokenFor(t, file, "boss", "--admin", "*")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(text), worker) || strings.Contains(string(text), boss) || !strings.HasPrefix(worker, "flk_") || len(worker) != 47 {
		t.Errorf("secret %q, file %s", worker, text)
	}
	if !strings.Contains(string(text), " none=orders/secret/ read=* acquire=orders/ acquire=a%20b/ requests=1000 waiters=5 held=7\n") {
		t.Errorf("file %s", text)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	for _, args := range [][]string{
		{}, {"--name", "a b"}, {"--name", "x", "--read", ""}, {"--name", "x", "--held", "0"}, {"--name", "x", "--held", "1 admin=*"},
		{"--name", "x", "--read", "a", "--admin", "a"},
	} {
		cmd := command(t, nil, append([]string{"token", "new"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err == nil || strings.Contains(string(out), "flk_") {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	if out, err := command(t, nil, "token", "new", "--name", "boss", "--append", file).CombinedOutput(); err == nil || !strings.Contains(string(out), "is unchanged") {
		t.Errorf("a name twice: %v: %s", err, out)
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, text) {
		t.Errorf("the file was changed: %v", err)
	}
	out, err := command(t, nil, "token", "new", "--name", "x", "--read", "*").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "\n  flk_") || !strings.Contains(string(out), "\n  x token=sha256:") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAccessFileIsReadAgain(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	worker := tokenFor(t, file, "worker", "--acquire", "orders/")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/1"}`), http.StatusUnauthorized)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/1"}`, bearer(worker)), http.StatusCreated)
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"jobs/1"}`, bearer(worker)), http.StatusForbidden)

	boss := tokenFor(t, file, "boss", "--admin", "*")
	p.until("the new name is known", func() bool {
		return p.ask(nil, "GET", "/locks/orders/1", "", bearer(boss)).StatusCode == http.StatusOK
	})
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, "worker token=hunter2\n")
	p.until("the broken file is told", func() bool { return strings.Contains(p.Logs(), "a changed file cannot be used") })
	const refused = `fencelock_file_refused{file="FENCELOCK_ACCESS_FILE"}`
	p.until("the metric says so, too", func() bool { return strings.Contains(p.scrape(), refused+" 1") })
	p.wants(p.ask(nil, "GET", "/locks/orders/1", "", bearer(boss)), http.StatusOK)
	if strings.Contains(p.Logs(), "hunter2") {
		t.Error("the log shows what the broken file holds")
	}
	writeFile(t, file, strings.ReplaceAll(string(good), "acquire=orders/", "acquire=jobs/"))
	p.until("the metric says that the file is good", func() bool { return strings.Contains(p.scrape(), refused+" 0") })
	p.until("the mended file is in force", func() bool {
		return p.ask(nil, "POST", "/locks", `{"resource":"jobs/1"}`, bearer(worker)).StatusCode == http.StatusCreated
	})
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"orders/2"}`, bearer(worker)), http.StatusForbidden)
}

// TestAHalfWrittenAccessFile: a file whose last line is cut off could give more rights than the whole file. It is
// never used.
func TestAHalfWrittenAccessFile(t *testing.T) {
	testenv.Long(t, "a half-written file of access control that is taken")
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	worker := tokenFor(t, file, "worker", "--acquire", "orders/")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	next := strings.ReplaceAll(string(whole), "acquire=orders/", "acquire=* none=secret/")
	half, _, _ := strings.Cut(next, " none=")
	for _, text := range []string{half, half + "\n", strings.TrimSuffix(next, "\n")} {
		writeFile(t, file, string(whole))
		p.until("the whole file is in force", func() bool {
			return strings.Contains(p.scrape(), `fencelock_file_refused{file="FENCELOCK_ACCESS_FILE"} 0`)
		})
		writeFile(t, file, text)
		p.until("the half-written file is refused", func() bool {
			return strings.Contains(p.scrape(), `fencelock_file_refused{file="FENCELOCK_ACCESS_FILE"} 1`)
		})
		p.wants(p.ask(nil, "POST", "/locks", `{"resource":"secret/1"}`, bearer(worker)), http.StatusForbidden)
	}
	writeFile(t, file, next)
	p.until("the whole file is in force", func() bool {
		return p.ask(nil, "GET", "/locks/other", "", bearer(worker)).StatusCode == http.StatusOK
	})
	p.wants(p.ask(nil, "POST", "/locks", `{"resource":"secret/1"}`, bearer(worker)), http.StatusForbidden)
}

func TestExampleAccessFilesAreGood(t *testing.T) {
	for _, overlay := range []string{"example", "managed-redis"} {
		if _, err := access.Open("../../deploy/kubernetes/overlays/"+overlay+"/access.txt", nil); err != nil {
			t.Error(err)
		}
	}
}

func TestBadSecurityStopsTheStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken")
	writeFile(t, broken, "# a comment\nworker token=hunter2\n")
	for part, env := range map[string][]string{
		"line 2: token= must be sha256:":      {"FENCELOCK_ACCESS_FILE=" + broken},
		"FENCELOCK_ACCESS_FILE":               {"FENCELOCK_ACCESS_FILE=" + broken + ".missing"},
		"must name a certificate and its key": {"FENCELOCK_TLS_CERT_FILE=" + broken, "FENCELOCK_TLS_KEY_FILE=" + broken},
	} {
		cmd := command(t, append(env, "FENCELOCK_LISTEN=127.0.0.1:0", "FENCELOCK_ADMIN_LISTEN=127.0.0.1:0"), "serve")
		out, err := cmd.CombinedOutput()
		if err == nil || cmd.ProcessState.ExitCode() != cli.ExitUsage || !strings.Contains(string(out), part) || strings.Contains(string(out), "hunter2") {
			t.Errorf("%v: %v: %s", env, err, out)
		}
	}
}

func TestTLSAndCertificates(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, caFile, file := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca"), filepath.Join(dir, "access")
	own, foreign := newAuthority(t), newAuthority(t)
	own.server(certFile, keyFile)
	writeFile(t, caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.cert.Raw})))
	worker := tokenFor(t, file, "worker", "--acquire", "orders/")
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, "dns cert=worker.example.com acquire=dns/\nspiffe cert=spiffe://example.com/worker acquire=spiffe/\nplain cert=only%20a%20name acquire=plain/\n"+string(before))
	spiffe, err := url.Parse("spiffe://example.com/worker")
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string]*http.Client{
		"dns":    own.client(&x509.Certificate{DNSNames: []string{"other.example.com", "worker.example.com"}}),
		"spiffe": own.client(&x509.Certificate{URIs: []*url.URL{spiffe}, DNSNames: []string{"worker.example.com"}}),
		"plain":  own.client(&x509.Certificate{Subject: pkix.Name{CommonName: "only a name"}}),
	}
	nobody := own.client(nil)
	p := startOver(t, "https", nobody, "FENCELOCK_TLS_CERT_FILE="+certFile, "FENCELOCK_TLS_KEY_FILE="+keyFile,
		"FENCELOCK_TLS_CLIENT_CA_FILE="+caFile, "FENCELOCK_ACCESS_FILE="+file)
	for name, client := range clients {
		q := p.as(client)
		var lease wire.Lease
		resp := q.ask(&lease, "POST", "/locks", `{"resource":"`+name+`/1"}`)
		q.wants(resp, http.StatusCreated)
		if resp.ProtoMajor != 2 {
			t.Errorf("HTTP/%d over TLS, want 2", resp.ProtoMajor)
		}
		q.wants(q.ask(nil, "POST", "/locks", `{"resource":"orders/1"}`), http.StatusForbidden)
		// A bearer token overrides the certificate, for better or worse.
		q.wants(q.ask(nil, "POST", "/locks", `{"resource":"orders/`+name+`"}`, bearer(worker)), http.StatusCreated)
		q.wants(q.ask(nil, "GET", "/leases/current", "", bearer(worker), "Fencelock-Lease: "+lease.LeaseID), http.StatusNotFound)
		q.wants(q.ask(nil, "GET", "/leases/current", "", bearer("wrong"), "Fencelock-Lease: "+lease.LeaseID), http.StatusUnauthorized)
	}
	p.wants(p.ask(nil, "GET", "/locks", ""), http.StatusUnauthorized)
	unnamed := p.as(own.client(&x509.Certificate{Subject: pkix.Name{CommonName: "only a name"}, DNSNames: []string{"not.in.the.file"}}))
	unnamed.wants(unnamed.ask(nil, "GET", "/locks", ""), http.StatusUnauthorized)
	addressed := p.as(own.client(&x509.Certificate{Subject: pkix.Name{CommonName: "only a name"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}))
	addressed.wants(addressed.ask(nil, "GET", "/locks", ""), http.StatusUnauthorized)
	foreigner := foreign.client(&x509.Certificate{DNSNames: []string{"worker.example.com"}})
	foreigner.Transport.(*http.Transport).TLSClientConfig.RootCAs.AddCert(own.cert)
	for what, client := range map[string]*http.Client{
		"expired":            own.client(&x509.Certificate{DNSNames: []string{"worker.example.com"}, NotAfter: time.Now().Add(-time.Hour)}),
		"of somebody else's": foreigner,
	} {
		if resp, err := p.as(client).try(t.Context(), nil, "GET", "/healthz", ""); err == nil {
			t.Errorf("a certificate that is %s is answered %d", what, resp.StatusCode)
		}
	}
	if resp, err := http.Get("http://" + strings.TrimPrefix(p.url, "https://") + "/locks"); err == nil && resp.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: %d", resp.StatusCode)
	}
	checkHealthOverTLS(t, p, certFile, keyFile)

	// A certificate that was renewed is served without a restart.
	renewed := own.server(certFile, keyFile)
	p.until("the new certificate is served", func() bool {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), nobody.Transport.(*http.Transport).TLSClientConfig)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.Cmp(renewed.SerialNumber) == 0
	})
}

// checkHealthOverTLS: the health check recognizes its own server by the certificate, whatever host name the
// certificate is for.
func checkHealthOverTLS(t *testing.T, p *process, certFile, keyFile string) {
	t.Helper()
	env := []string{"FENCELOCK_LISTEN=" + strings.TrimPrefix(p.url, "https://"), "FENCELOCK_TLS_CERT_FILE=" + certFile, "FENCELOCK_TLS_KEY_FILE=" + keyFile}
	if out, err := command(t, env, "healthcheck").CombinedOutput(); err != nil {
		t.Errorf("healthcheck over TLS: %v: %s", err, out)
	}
	other := filepath.Join(t.TempDir(), "other")
	newAuthority(t).server(other, other+".key")
	env[1] = "FENCELOCK_TLS_CERT_FILE=" + other
	if out, err := command(t, env, "healthcheck").CombinedOutput(); err == nil {
		t.Errorf("healthcheck takes another server's certificate: %s", out)
	}
}

// TestACertificateEndsDuringAConnection: a client certificate is valid at the handshake and expires later. A request
// on the same connection after that is refused.
func TestACertificateEndsDuringAConnection(t *testing.T) {
	t.Parallel()
	p, own, _ := startWithCertificates(t)
	client := own.client(&x509.Certificate{DNSNames: []string{"worker.example.com"}, NotAfter: time.Now().Add(4 * time.Second)})
	q := p.as(client)
	q.wants(q.ask(nil, "GET", "/locks/r", ""), http.StatusOK)
	p.until("the certificate's end is seen", func() bool {
		resp, err := q.try(t.Context(), nil, "GET", "/locks/r", "")
		return err == nil && resp.StatusCode == http.StatusUnauthorized
	})
}

// TestLongWaitsOverTLS: net/http hands a connection over for a long wait. The connection comes back with its client
// certificate, however often that happens.
func TestLongWaitsOverTLS(t *testing.T) {
	t.Parallel()
	p, own, _ := startWithCertificates(t)
	client := own.client(&x509.Certificate{DNSNames: []string{"worker.example.com"}})
	config := client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.NextProtos = []string{"http/1.1"}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := (&tls.Dialer{Config: config}).DialContext(ctx, "tcp", strings.TrimPrefix(p.url, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	answers := bufio.NewReader(conn)
	for range 3 {
		held := p.as(client).acquire(`{"resource":"r","ttl_ms":1500}`)
		const body = `{"resource":"r","wait_ms":60000}`
		if _, err := fmt.Fprintf(conn, "POST /locks HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(answers, &http.Request{Method: http.MethodPost, URL: &url.URL{Path: "/locks"}})
		if err != nil {
			t.Fatal(err)
		}
		var lease wire.Lease
		p.wants(resp, http.StatusCreated)
		if err := json.NewDecoder(resp.Body).Decode(&lease); err != nil {
			t.Fatal(err)
		}
		if lease.FencingToken <= held.FencingToken {
			t.Errorf("token %d after %d", lease.FencingToken, held.FencingToken)
		}
		if _, err := fmt.Fprintf(conn, "DELETE /leases/current HTTP/1.1\r\nHost: x\r\nFencelock-Lease: %s\r\n\r\n", lease.LeaseID); err != nil {
			t.Fatal(err)
		}
		if resp, err = http.ReadResponse(answers, nil); err != nil || resp.StatusCode != http.StatusNoContent {
			t.Fatalf("the release on the connection that came back: %+v, %v", resp, err)
		}
	}
}

// startWithCertificates runs a server at which the certificate of worker.example.com may do everything.
func startWithCertificates(t *testing.T) (*process, *authority, string) {
	t.Helper()
	dir := t.TempDir()
	certFile, keyFile, caFile, file := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca"), filepath.Join(dir, "access")
	own := newAuthority(t)
	own.server(certFile, keyFile)
	writeFile(t, caFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.cert.Raw})))
	writeFile(t, file, "worker cert=worker.example.com admin=*\nend\n")
	p := startOver(t, "https", own.client(nil), "FENCELOCK_TLS_CERT_FILE="+certFile, "FENCELOCK_TLS_KEY_FILE="+keyFile,
		"FENCELOCK_TLS_CLIENT_CA_FILE="+caFile, "FENCELOCK_ACCESS_FILE="+file)
	return p, own, file
}

// TestAdminListenerThatIsExposed: on an address other than loopback the admin listener authenticates its callers, as
// the API does.
func TestAdminListenerThatIsExposed(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	scraper := tokenFor(t, file, "scraper", "--read", "*")
	partial := tokenFor(t, file, "partial", "--read", "*", "--none", "secret/")
	boss := tokenFor(t, file, "boss", "--admin", "*")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file, "FENCELOCK_ADMIN_LISTEN=0.0.0.0:0")
	_, port, err := net.SplitHostPort(p.admin)
	if err != nil {
		t.Fatal(err)
	}
	admin := p.as(http.DefaultClient)
	admin.url = "http://127.0.0.1:" + port
	for secret, wanted := range map[string][2]int{"": {401, 401}, "wrong": {401, 401}, scraper: {200, 403}, partial: {403, 403}, boss: {200, 200}} {
		var header []string
		if secret != "" {
			header = []string{bearer(secret)}
		}
		admin.wants(admin.ask(nil, "GET", "/metrics", "", header...), wanted[0])
		admin.wants(admin.ask(nil, "GET", "/debug/pprof/cmdline", "", header...), wanted[1])
	}
	p.until("looks at profiles are audited", func() bool {
		return strings.Contains(p.Logs(), `"msg":"audit","identity":"boss","act":"profile","resource":"/debug/pprof/cmdline","result":"done"`) &&
			strings.Contains(p.Logs(), `"identity":"scraper","act":"profile","resource":"/debug/pprof/cmdline","result":"forbidden"`)
	})
	p = start(t, "FENCELOCK_ACCESS_FILE="+file) // on loopback it is as it was
	resp, err := http.Get("http://" + p.admin + "/metrics")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("metrics on loopback: %+v, %v", resp, err)
	}
}

// TestNodesOfAServerThatAsks: if the server requires a credential, the command nodes says which one it needs to show
// more.
func TestNodesOfAServerThatAsks(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access.txt")
	secret := tokenFor(t, file, "worker", "--read", "orders/")
	p := start(t, "FENCELOCK_ACCESS_FILE="+file)
	for _, c := range []struct {
		env  []string
		code int
		says string
	}{
		{[]string{"A=b"}, 0, "1 vote, 1 are a quorum; the server shows its nodes only to callers that it knows"},
		{[]string{"FENCELOCK_BEARER_TOKEN=" + secret}, 0, "embedded  voting"},
		{[]string{"FENCELOCK_BEARER_TOKEN=wrong"}, cli.ExitDenied, "the service does not know this caller"},
	} {
		cmd := command(t, c.env, "nodes", "--url", p.url)
		out, _ := cmd.CombinedOutput()
		if code := cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(string(out), c.says) {
			t.Errorf("%v: exit code %d, want %d and %q:\n%s", c.env, code, c.code, c.says, out)
		}
	}
	if out, err := command(t, nil, "healthcheck", "--url", p.url).CombinedOutput(); err != nil {
		t.Errorf("the health check needs no credentials: %v: %s", err, out)
	}
}

// TestAuthoritiesThatAreCutOff: a file of two authorities that was cut off in the second was once read as a file of
// the first alone. Now a server does not start with it, and a running server keeps the authorities that it read
// before.
func TestAuthoritiesThatAreCutOff(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile, caFile, file := filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "ca"), filepath.Join(dir, "access")
	first, second := newAuthority(t), newAuthority(t)
	server := first.server(certFile, keyFile)
	text := func(cert *x509.Certificate) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}))
	}
	whole := text(first.cert) + text(second.cert)
	writeFile(t, caFile, whole)
	writeFile(t, file, "worker cert=worker.example.com read=*\nend\n")
	env := []string{"FENCELOCK_TLS_CERT_FILE=" + certFile, "FENCELOCK_TLS_KEY_FILE=" + keyFile, "FENCELOCK_TLS_CLIENT_CA_FILE=" + caFile, "FENCELOCK_ACCESS_FILE=" + file}
	client := second.client(&x509.Certificate{DNSNames: []string{"worker.example.com"}})
	client.Transport.(*http.Transport).TLSClientConfig.RootCAs.AddCert(first.cert)
	p := startOver(t, "https", client, env...)
	p.wants(p.ask(nil, "GET", "/locks", ""), http.StatusOK)

	writeFile(t, caFile, whole[:len(whole)-100])
	p.until("the file is refused", func() bool { return strings.Contains(p.Logs(), "cut off") })
	client.CloseIdleConnections()
	p.wants(p.ask(nil, "GET", "/locks", ""), http.StatusOK)
	if code, out := outcome(t, append(env, "FENCELOCK_DATA="+filepath.Join(dir, "data")), "serve"); code != cli.ExitUsage || !strings.Contains(out, "FENCELOCK_TLS_CLIENT_CA_FILE: "+caFile+" is cut off") {
		t.Errorf("starts with it: exit code %d: %s", code, out)
	}
	writeFile(t, caFile, whole)
	writeFile(t, certFile, text(server)+text(first.cert)[:50])
	if code, out := outcome(t, append(env, "FENCELOCK_DATA="+filepath.Join(dir, "data")), "serve"); code != cli.ExitUsage || !strings.Contains(out, certFile+" is cut off") {
		t.Errorf("starts with a chain that is cut off: exit code %d: %s", code, out)
	}
}
