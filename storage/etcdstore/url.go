package etcdstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/internal/pemfile"
)

// target is the content of a store's URL.
type target struct {
	hosts    []string // host:port
	prefix   string   // ends with a slash
	user     string
	password string
	tls      *tls.Config // nil without TLS
}

// The schemes of URLs, without and with TLS.
const (
	SchemePlain = "etcd://"
	SchemeTLS   = "etcds://"
)

const (
	defaultPort   = "2379"
	defaultPrefix = "/fencelock/"

	probeTime = time.Second
)

// errMalformedURL omits the URL on purpose, because it may contain a password.
var errMalformedURL = errors.New("the URL is not valid; it should look like " +
	"etcd://a:2379,b:2379,c:2379/prefix or etcds://user:password@a:2379,b:2379,c:2379/prefix?ca=/path/ca.pem")

// parse reads a URL. It does not use net/url, which supports only one host.
func parse(raw string) (*target, error) {
	scheme := SchemePlain
	if strings.HasPrefix(raw, SchemeTLS) {
		scheme = SchemeTLS
	}
	rest, ok := strings.CutPrefix(raw, scheme)
	if !ok {
		return nil, errMalformedURL
	}
	end := len(rest)
	if at := strings.IndexAny(rest, "/?#"); at >= 0 {
		end = at
	}
	authority := rest[:end]
	credentials, hosts := "", authority
	if at := strings.LastIndex(authority, "@"); at >= 0 {
		credentials, hosts = authority[:at+1], authority[at+1:]
	}
	u, err := url.Parse("etcd://" + credentials + "host" + rest[end:])
	if err != nil || u.Fragment != "" {
		return nil, errMalformedURL
	}
	t := &target{prefix: defaultPrefix, user: u.User.Username()}
	t.password, _ = u.User.Password()
	if path := strings.Trim(u.Path, "/"); path != "" {
		t.prefix = "/" + path + "/"
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if t.hosts, ok = appendHost(t.hosts, host); !ok {
			return nil, errMalformedURL
		}
	}
	if err := t.secure(scheme == SchemeTLS, u.Query()); err != nil {
		return nil, err
	}
	return t, nil
}

func appendHost(hosts []string, host string) ([]string, bool) {
	name, port, err := net.SplitHostPort(host)
	if err != nil {
		name, port = strings.Trim(host, "[]"), defaultPort
	}
	return append(hosts, net.JoinHostPort(name, port)), name != "" && port != "" && !strings.ContainsAny(name, " @")
}

// secure reads the options. All of them concern TLS.
func (t *target) secure(on bool, options url.Values) (err error) {
	for name := range options {
		if name != "ca" && name != "cert" && name != "key" {
			return fmt.Errorf("the URL has the option %q; the options are ca, cert and key", name)
		}
		if !on {
			return fmt.Errorf("the option %q of the URL is for TLS: write etcds:// instead of etcd://", name)
		}
	}
	if !on {
		return nil
	}
	t.tls, err = pemfile.Client(options)
	return err
}

// place describes the target without the password.
func (t *target) place() string { return strings.Join(t.hosts, ",") + t.prefix }

// local reports whether all hosts are on this machine.
func (t *target) local() bool {
	return !slices.ContainsFunc(t.hosts, func(host string) bool {
		name, _, _ := net.SplitHostPort(host)
		ip := net.ParseIP(name)
		return name != "localhost" && (ip == nil || !ip.IsLoopback())
	})
}

// probe connects to the first host and returns why that fails, or nil.
func (t *target) probe() error {
	dialer := &net.Dialer{Timeout: probeTime}
	conn, err := dialer.Dial("tcp", t.hosts[0])
	if err != nil || t.tls == nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	name, _, _ := net.SplitHostPort(t.hosts[0])
	config := t.tls.Clone()
	config.ServerName, config.NextProtos = name, []string{"h2"}
	secure := tls.Client(conn, config)
	_ = secure.SetDeadline(time.Now().Add(probeTime))
	if err := secure.Handshake(); err != nil {
		return err
	}
	// A server that requires a client certificate reports its absence only after the handshake.
	_, err = secure.Read(make([]byte, 1))
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
		return nil
	}
	return err
}
