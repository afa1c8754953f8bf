package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/client"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
	"github.com/fencelock/fencelock/internal/testenv"
)

// tlsServer requires client certificates. Its response says whose certificate, and which credential, a request came
// with.
type tlsServer struct {
	*httptest.Server
	ca, cert, key string
	peer, bearer  atomic.Value
}

func startTLSServer(t *testing.T) *tlsServer {
	t.Helper()
	dir := t.TempDir()
	s := &tlsServer{ca: filepath.Join(dir, "ca.pem"), cert: filepath.Join(dir, "client.pem"), key: filepath.Join(dir, "client-key.pem")}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	// One self-signed certificate is authority, server and client here.
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "billing"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	for path, content := range map[string][]byte{s.ca: certPEM, s.cert: certPEM, s.key: keyPEM} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certPEM)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.peer.Store(r.TLS.PeerCertificates[0].Subject.CommonName)
		s.bearer.Store(r.Header.Get("Authorization"))
		switch {
		case r.Header.Get("Authorization") == "Bearer wrong":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"type":"/problems/unauthenticated","title":"Unknown credential","status":401}`))
		case r.URL.Path == "/readyz":
			_, _ = w.Write([]byte(`{"ready":true}`))
		default:
			_, _ = w.Write([]byte(`{"locks":[],"resource":"r","held":false,"queue":[],"name":"billing","rules":[{"prefix":"","right":"read"}]}`))
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog = nil
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// do runs a command in this process.
func do(t *testing.T, args ...string) said {
	t.Helper()
	var out, errOut bytes.Buffer
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetIn(strings.NewReader(""))
	return said{cli.Run(t.Context(), root), out.String(), errOut.String()}
}

func clearConnection(t *testing.T) (home string) {
	t.Helper()
	for _, v := range config.Variables() {
		t.Setenv(v.Name, "")
	}
	for _, name := range client.Variables() {
		t.Setenv(name, "")
	}
	home = t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", "")
	return home
}

// Address, credential and certificates come from flags, variables, or a file.
func TestWhereTheConnectionComesFrom(t *testing.T) {
	s := startTLSServer(t)
	credential := filepath.Join(t.TempDir(), "credential")
	if err := os.WriteFile(credential, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := "# ours\n\nFENCELOCK_URL=" + s.URL + "\nFENCELOCK_CA_FILE = '" + s.ca + "'\nFENCELOCK_CLIENT_CERT_FILE=" + s.cert +
		"\nFENCELOCK_CLIENT_KEY_FILE=\"" + s.key + "\"\nFENCELOCK_BEARER_TOKEN=from-config\n"
	checks := func(what, bearer string, args ...string) {
		t.Helper()
		for _, command := range []string{"ls", "nodes", "healthcheck"} {
			s.bearer.Store("")
			do(t, append([]string{command}, args...)...).wants(t, what+": "+command, 0, "", "")
			if s.bearer.Load() != bearer || s.peer.Load() != "billing" {
				t.Errorf("%s: %s showed %q as %q, want %q", what, command, s.bearer.Load(), s.peer.Load(), bearer)
			}
		}
	}
	home := clearConnection(t)
	checks("flags", "Bearer from-file", "--url", s.URL, "--ca-file", s.ca, "--client-cert-file", s.cert, "--client-key-file", s.key, "--bearer-token-file", credential)

	file := filepath.Join(home, ".config", "fencelock", "config")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	checks("the usual file", "Bearer from-config")
	t.Setenv("FENCELOCK_BEARER_TOKEN", "from-variable")
	checks("a variable overrides the file", "Bearer from-variable")
	t.Setenv("FENCELOCK_BEARER_TOKEN", "wrong")
	do(t, "ls").wants(t, "a wrong credential", cli.ExitDenied, "", "does not know this caller")
	do(t, "run", "r", "--", "true").wants(t, "a wrong credential", cli.ExitDenied, "", "does not know this caller")
	t.Setenv("FENCELOCK_BEARER_TOKEN", "")

	elsewhere := filepath.Join(t.TempDir(), "config")
	t.Setenv("FENCELOCK_CONFIG", elsewhere)
	do(t, "ls").wants(t, "a file that is named and not there", 2, "", "FENCELOCK_CONFIG")
	if err := os.Rename(file, elsewhere); err != nil {
		t.Fatal(err)
	}
	checks("a named file", "Bearer from-config")
	if err := os.Chmod(elsewhere, 0o644); err != nil {
		t.Fatal(err)
	}
	do(t, "ls").wants(t, "a secret that others may read", 2, "", "chmod 600")
	if err := os.WriteFile(elsewhere, []byte("FENCELOCK_URL=x\nFENCELOCK_BEARER=s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := do(t, "ls")
	got.wants(t, "a line that means nothing", 2, "", "line 2")
	if strings.Contains(got.errOut, "s3cret") {
		t.Error("the complaint holds the secret:", got.errOut)
	}
	t.Setenv("FENCELOCK_CONFIG", "")
	do(t, "ls", "--url", s.URL, "--client-cert-file", s.cert).wants(t, "a certificate without its key", 2, "", "needs both")
	do(t, "ls", "--url", s.URL).wants(t, "an authority that nobody trusts", cli.ExitUnavailable, "", "certificate")
	do(t, "ls", "--url", "ftp://x").wants(t, "no URL", 2, "", "must be a URL")
}

// The commands send their credential, and report when they lack a right.
func TestToolsUnderAccessControl(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	access, credential := filepath.Join(dir, "access.txt"), filepath.Join(dir, "worker.token")
	made := finish(t, command(t, nil, "token", "new", "--name", "worker", "--acquire", "orders/", "--append", access), "")
	if err := os.WriteFile(credential, []byte(made.out), 0o600); err != nil || made.code != 0 {
		t.Fatal(err, made)
	}
	p := start(t, "FENCELOCK_ACCESS_FILE="+access)
	path := testenv.Program(t)
	known := []string{"FENCELOCK_BEARER_TOKEN_FILE=" + credential, "PROGRAM=" + path}
	inner := `"$PROGRAM" run orders/1 -- true && "$PROGRAM" extend >/dev/null && "$PROGRAM" ls`
	p.tool("", known, "run", "orders/1", "--", "sh", "-c", inner).wants(t, "run", 0, "orders/1", "")
	p.tool("", nil, "run", "--bearer-token-file", credential, "orders/1", "--", "true").wants(t, "run", 0, "", "")
	p.tool("", nil, "run", "orders/1", "--", "true").wants(t, "nobody's run", cli.ExitDenied, "", "does not know this caller")
	p.tool("", []string{"FENCELOCK_BEARER_TOKEN=wrong"}, "ls").wants(t, "a stranger's ls", cli.ExitDenied, "", "does not know this caller")
	p.tool("", known, "run", "-E", "0", "other", "--", "true").wants(t, "run elsewhere", cli.ExitDenied, "", "acquire")
	p.tool("", known, "break", "--yes", "--any", "orders/1").wants(t, "break", cli.ExitDenied, "", "admin")
}

// Every command that is redirected fails, names the target, and does not follow: a 302 would turn a release into a
// GET, and send the bearer token elsewhere.
func TestNoCommandFollowsARedirect(t *testing.T) {
	t.Parallel()
	var followed atomic.Int32
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed.Add(1) }))
	t.Cleanup(elsewhere.Close)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL+"/secret"+r.URL.Path, http.StatusFound)
	}))
	t.Cleanup(server.Close)
	const lease = "AYphRtRLRJxvNdOe25YJYelqsuZj6IvC6aA0AACFgd7hxLKReHljxuOR23g67H0l"
	for _, args := range [][]string{
		{"release", lease}, {"extend", lease}, {"acquire", "r"}, {"get", "r"}, {"ls"}, {"nodes"}, {"healthcheck"},
	} {
		cmd := command(t, []string{"FENCELOCK_URL=" + server.URL, "FENCELOCK_BEARER_TOKEN=secret-token"}, args...)
		said, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(said), elsewhere.URL) || strings.Contains(string(said), "secret") {
			t.Errorf("%s: %v\n%s", args[0], err, said)
		}
	}
	if n := followed.Load(); n > 0 {
		t.Errorf("%d redirects were followed", n)
	}
}
