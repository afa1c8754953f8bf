package etcdstore

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/testenv"
)

// withUsers turns authentication on, with a user called locks who has a prefix. It returns the URL for that user, and
// a client of root.
func withUsers(t *testing.T, etcd *testenv.Etcd) (url string, root *clientv3.Client) {
	t.Helper()
	plain := etcd.URL("locks")
	target, err := parse(plain)
	if err != nil {
		t.Fatal(err)
	}
	connect := func(user, password string) *clientv3.Client {
		client, err := clientv3.New(clientv3.Config{Endpoints: target.hosts, TLS: target.tls, Username: user, Password: password, DialTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close() })
		return client
	}
	ctx, first := t.Context(), connect("", "")
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(first.UserAdd(ctx, "root", "right"))
	do(first.UserGrantRole(ctx, "root", "root"))
	do(first.RoleAdd(ctx, "locks"))
	do(first.RoleGrantPermission(ctx, "locks", "/locks/", "/locks0", clientv3.PermissionType(clientv3.PermReadWrite)))
	do(first.UserAdd(ctx, "locks", "secret"))
	do(first.UserGrantRole(ctx, "locks", "locks"))
	do(first.AuthEnable(ctx))
	return strings.Replace(plain, "://", "://locks:secret@", 1), connect("root", "right")
}

// logins returns how many logins etcd has begun since it was started.
func logins(t *testing.T, etcd *testenv.Etcd, store *Store) (n int) {
	t.Helper()
	scheme, client := "http://", &http.Client{}
	if store.target.tls != nil {
		config := store.target.tls.Clone()
		scheme, client.Transport = "https://", &http.Transport{TLSClientConfig: config}
	}
	resp, err := client.Get(scheme + etcd.Members[0].Addr() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		line := lines.Text()
		if strings.HasPrefix(line, "grpc_server_started_total{") && strings.Contains(line, `grpc_method="Authenticate"`) {
			if n, err = strconv.Atoi(line[strings.LastIndex(line, " ")+1:]); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// serve lets each store commit until it succeeds, from several goroutines, as a server does.
func serve(t *testing.T, stores []*Store) {
	t.Helper()
	var all sync.WaitGroup
	for _, s := range stores {
		for range 8 {
			all.Go(func() {
				testenv.Eventually(t, time.Minute, func() error { return incremented(t.Context(), s) })
			})
		}
	}
	all.Wait()
}

// When etcd no longer knows the tokens, each server logs in once, and not for each request: a login costs etcd a
// tenth of a second of a core.
func TestLogins(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]testenv.EtcdOptions{
		"simple tokens": {},
		"with TLS":      {TLS: true},
		"JWT":           {Args: []string{"--auth-token", jwt(t, time.Hour)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etcd := testenv.StartEtcd(t, 1, options)
			url, root := withUsers(t, etcd)
			one := openStore(t, url)
			stores := []*Store{one, openStore(t, url)}
			for _, s := range stores {
				go s.Hear(t.Context(), "topic", func(string) {})
			}
			serve(t, stores)
			before := logins(t, etcd, one)
			if _, err := root.UserChangePassword(t.Context(), "locks", "secret"); err != nil {
				t.Fatal(err)
			}
			changed := time.Now()
			serve(t, stores)
			t.Logf("both serve again after %s", time.Since(changed).Round(time.Millisecond))
			if n := logins(t, etcd, one) - before; n > 2 {
				t.Errorf("after a change of the password two servers have logged in %d times", n)
			}
			etcd.Members[0].Kill()
			etcd.Members[0].Restart()
			serve(t, stores)
			serve(t, stores)
			if n := logins(t, etcd, one); n > 2+2 { // root's client logs in, too
				t.Errorf("after a restart of etcd two servers have logged in %d times", n)
			}
		})
	}
}

// A token that expires is replaced.
func TestTokensThatExpire(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{Args: []string{"--auth-token", jwt(t, time.Second)}})
	url, _ := withUsers(t, etcd)
	s := openStore(t, url)
	before := logins(t, etcd, s)
	testenv.Eventually(t, time.Minute, func() error {
		increment(t, s)
		if n := logins(t, etcd, s) - before; n < 3 {
			return fmt.Errorf("%d logins", n)
		}
		return nil
	})
}

// A login that takes longer than a request may take is not begun again: when it ends, the server is logged in. The
// test delays the login, because the time that etcd takes for one depends on the machine.
func TestLoginsThatTakeLong(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	url, root := withUsers(t, etcd)
	s, err := Open(t.Context(), url, Options{Timeout: 500 * time.Millisecond, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	begun, answered := make(chan bool, 10), make(chan bool)
	s.conn.login.mu.Lock()
	ask := s.conn.login.ask
	s.conn.login.ask = func(ctx context.Context, user, password string) (string, error) {
		begun <- true
		<-answered
		return ask(context.WithoutCancel(ctx), user, password)
	}
	s.conn.login.mu.Unlock()
	before := logins(t, etcd, s)
	if _, err := root.UserChangePassword(t.Context(), "locks", "secret"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() error {
		err := incremented(t.Context(), s)
		if want := `authentication: etcd has not answered the login of the user "locks" yet`; err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Errorf("%w: want %q", err, want)
		}
		return nil
	})
	for range 3 {
		if err := incremented(t.Context(), s); err == nil {
			t.Error("it is let in before the login is answered")
		}
	}
	close(answered)
	testenv.Eventually(t, time.Minute, func() error { return incremented(t.Context(), s) })
	if n := logins(t, etcd, s) - before; n != 1 || len(begun) != 1 {
		t.Errorf("it has logged in %d times, and begun %d logins", n, len(begun))
	}
}

// A wrong password is reported, and tried again with longer and longer pauses. When it is corrected, it is used at
// once.
func TestAPasswordThatIsChanged(t *testing.T) {
	t.Parallel()
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	url, root := withUsers(t, etcd)
	s := openStore(t, url)
	if _, err := root.UserChangePassword(t.Context(), "locks", "other"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, func() error {
		err := incremented(t.Context(), s)
		if want := `authentication: etcd does not let the user "locks" in`; err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			return fmt.Errorf("%w: want %q", err, want)
		}
		return nil
	})
	if _, err := root.UserChangePassword(t.Context(), "locks", "secret"); err != nil {
		t.Fatal(err)
	}
	serve(t, []*Store{s})
}

// A login continues when the request that waits for it ends, and a refused token causes one login.
func TestOneLogin(t *testing.T) {
	t.Parallel()
	begun, answer := make(chan bool, 10), make(chan string)
	l := &login{needed: true, credentials: func() (string, string) { return "u", "" }, ask: func(context.Context, string, string) (string, error) {
		begun <- true
		return <-answer, nil
	}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.await(ctx); !errors.As(err, new(*loginError)) {
		t.Errorf("the error is %v", err)
	}
	<-begun
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if err := l.await(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	answer <- "token"
	all.Wait()
	l.refused("another")
	if err := l.await(ctx); err != nil {
		t.Error("a token that another one replaced is refused, and the new one is given up")
	}
	l.refused("token")
	all.Go(func() { _ = l.await(t.Context()) })
	<-begun
	answer <- "new"
	all.Wait()
	if l.present() != "new" || len(begun) != 0 {
		t.Errorf("the token is %q, and %d more logins have begun", l.present(), len(begun))
	}
}

// jwt is the option of an etcd that issues JSON web tokens.
func jwt(t *testing.T, ttl time.Duration) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return fmt.Sprintf("jwt,pub-key=%s,priv-key=%s,sign-method=RS256,ttl=%s",
		write("public.pem", "PUBLIC KEY", public), write("private.pem", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)), ttl)
}
