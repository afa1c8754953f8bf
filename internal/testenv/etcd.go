package testenv

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Etcd is an etcd cluster that belongs to one test.
type Etcd struct {
	Members []*EtcdMember
	t       testing.TB
	token   string
	options EtcdOptions
	lines   *peerLines // nil without EtcdOptions.Lines
}

// EtcdOptions are the options of StartEtcd.
type EtcdOptions struct {
	// TLS makes the members speak TLS with clients. Clients must present a certificate of the same authority.
	TLS bool
	// Lines makes the members reach each other through lines, which EtcdMember.Isolate cuts.
	Lines bool
	// Args are further arguments of each member.
	Args []string
}

// EtcdMember is one server of a cluster.
type EtcdMember struct {
	control
	name    string
	own     *own
	peer    int // the port at which other members reach it
	behind  int // the port on which it listens for them; without lines, the same as peer
	cluster *Etcd
}

// sharedEtcd is the etcd in which single tests of this process use a prefix each. It ends with the process,
// and syncs nothing to disk.
var sharedEtcd = sync.OnceValues(func() (*Etcd, error) {
	return tryEtcd(nil, 1, EtcdOptions{Args: []string{"--unsafe-no-fsync"}})
})

// EtcdURL returns a new prefix on the etcd of one member that the tests of this process share.
func EtcdURL(t testing.TB) string {
	t.Helper()
	NeedsServer(t)
	e, err := sharedEtcd()
	if err != nil {
		t.Fatalf("testenv: start etcd: %v", err)
	}
	return e.URL("test-" + rand.Text())
}

// StartEtcd starts a cluster of n members and returns when all respond.
func StartEtcd(t testing.TB, n int, options EtcdOptions) *Etcd {
	t.Helper()
	NeedsServer(t)
	e, err := tryEtcd(t, n, options)
	if err != nil {
		t.Fatalf("testenv: start etcd: %v", err)
	}
	return e
}

// tryEtcd starts a cluster that ends with the test, or with the process if t is nil.
func tryEtcd(t testing.TB, n int, options EtcdOptions) (*Etcd, error) {
	path, err := findEtcd()
	if err != nil {
		return nil, err
	}
	e := &Etcd{t: t, options: options}
	const others = 2 // the address of a member, and where it listens behind its line
	servers, err := startOwns("etcd", n, others, func(servers []*own) error { return e.prepare(path, servers) })
	if err != nil {
		return nil, err
	}
	for _, s := range servers {
		if t != nil {
			s.cleanUp(t)
		}
	}
	return e, nil
}

// prepare makes the servers members with new folders, which are not started yet.
func (e *Etcd) prepare(path string, servers []*own) error {
	e.token, e.Members = rand.Text(), nil
	for i, s := range servers {
		m := &EtcdMember{name: "m" + strconv.Itoa(i), own: s, peer: s.others[0], behind: s.others[0], cluster: e}
		if e.options.Lines {
			m.behind = s.others[1]
		}
		s.answers, s.taken = m.healthy, "address already in use"
		m.control = control{t: e.t, name: "etcd " + m.name, await: s.awaitReady, srv: s}
		e.Members = append(e.Members, m)
	}
	if e.options.Lines {
		e.lines = startPeerLines(e.t, e.Members)
	}
	if e.options.TLS {
		if _, err := writeCertificate(servers[0].dir); err != nil {
			return err
		}
	}
	for _, m := range e.Members {
		m.own.server = m.process(path)
	}
	return nil
}

func (m *EtcdMember) process(path string) *process {
	return &process{path: path, args: m.args(), dir: m.own.dir, stopSignal: syscall.SIGTERM, reapSignal: syscall.SIGKILL}
}

func (m *EtcdMember) args() []string {
	client := m.cluster.scheme() + localAddr(m.own.port)
	args := []string{
		"--name", m.name, "--data-dir", m.dataDir(), "--logger", "zap", "--log-level", "error",
		"--pre-vote", // the default since etcd 3.5: a member that comes back forces no election
		"--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", "http://" + localAddr(m.behind), "--initial-advertise-peer-urls", m.peerURL(),
		"--initial-cluster", m.cluster.initial(), "--initial-cluster-token", m.cluster.token,
	}
	if m.cluster.options.TLS {
		dir := m.cluster.Members[0].own.dir
		args = append(args, "--cert-file", filepath.Join(dir, certFile), "--key-file", filepath.Join(dir, keyFile),
			"--trusted-ca-file", filepath.Join(dir, certFile), "--client-cert-auth")
	}
	return append(args, m.cluster.options.Args...)
}

func (m *EtcdMember) dataDir() string { return filepath.Join(m.own.dir, "data") }

func (e *Etcd) scheme() string {
	if e.options.TLS {
		return "https://"
	}
	return "http://"
}

func (e *Etcd) initial() string {
	var list []string
	for _, m := range e.Members {
		list = append(list, m.name+"="+m.peerURL())
	}
	return strings.Join(list, ",")
}

// URL returns the URL of a prefix, with the addresses of all members.
func (e *Etcd) URL(prefix string) string {
	var hosts []string
	for _, m := range e.Members {
		hosts = append(hosts, localAddr(m.own.port))
	}
	all := strings.Join(hosts, ",") + "/" + prefix
	if !e.options.TLS {
		return "etcd://" + all
	}
	cert, key := e.Certificate()
	return fmt.Sprintf("etcds://%s?ca=%s&cert=%s&key=%s", all, cert, cert, key)
}

// Certificate returns the files of the certificate that the members present and accept from clients. The
// certificate is its own authority.
func (e *Etcd) Certificate() (cert, key string) {
	return filepath.Join(e.Members[0].own.dir, certFile), filepath.Join(e.Members[0].own.dir, keyFile)
}

// Addr returns the address on which the member listens for clients.
func (m *EtcdMember) Addr() string { return localAddr(m.own.port) }

// healthy returns nil if the member is healthy, which needs a leader.
func (m *EtcdMember) healthy() error {
	client := &http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	if m.cluster.options.TLS {
		cert, key := m.cluster.Certificate()
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return err
		}
		// This request only checks health, so it accepts any certificate.
		client.Transport = &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}
	}
	resp, err := client.Get(m.cluster.scheme() + m.Addr() + "/health")
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd %s: %s", m.name, resp.Status)
	}
	return nil
}

// Start starts a member that is down. It does not wait until the member responds, because a single member has
// no leader.
func (m *EtcdMember) Start() {
	m.t.Helper()
	m.do("Start", server.start)
}

// Await waits until the member is healthy.
func (m *EtcdMember) Await() {
	m.t.Helper()
	m.do("Await", func(server) error { return m.own.awaitReady() })
}

// Ctl runs etcdctl for the first member.
func (e *Etcd) Ctl(args ...string) string {
	e.t.Helper()
	return e.Members[0].ctl(args...)
}

func (m *EtcdMember) ctl(args ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), readyWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "etcdctl", args...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS="+m.Addr())
	out, err := cmd.CombinedOutput()
	if err != nil {
		m.t.Fatalf("testenv: etcdctl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// Requests returns the number of client calls to which the running members have responded.
func (e *Etcd) Requests() (n int) {
	e.t.Helper()
	for _, m := range e.Members {
		if running(m.srv) {
			n += m.requests()
		}
	}
	return n
}

func (m *EtcdMember) requests() (n int) {
	m.t.Helper()
	client := &http.Client{Timeout: readyWithin}
	resp, err := client.Get(m.cluster.scheme() + m.Addr() + "/metrics")
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if line, is := strings.CutPrefix(lines.Text(), "grpc_server_handled_total{"); is {
			count, err := strconv.Atoi(line[strings.LastIndex(line, " ")+1:])
			if err != nil {
				m.t.Fatal(err)
			}
			n += count
		}
	}
	return n
}

// Snapshot saves the data to a file.
func (e *Etcd) Snapshot() string {
	e.t.Helper()
	file := filepath.Join(e.t.TempDir(), "snapshot.db")
	e.Ctl("snapshot", "save", file)
	return file
}

// Restore ends all members and starts them again, on the same addresses, with the data of a snapshot. With
// another token the cluster gets another id.
func (e *Etcd) Restore(file, token string) {
	e.t.Helper()
	if token != "" {
		e.token = token
	}
	e.RestoreBy(func(m *EtcdMember) {
		e.Ctl("snapshot", "restore", file, "--name", m.name, "--data-dir", m.dataDir(), "--initial-cluster", e.initial(),
			"--initial-cluster-token", e.token, "--initial-advertise-peer-urls", m.peerURL())
	})
}

// RestoreBy ends all members, lets restore make the data folder of each, and starts them
// again, on the same addresses.
func (e *Etcd) RestoreBy(restore func(*EtcdMember)) {
	e.t.Helper()
	path, err := findEtcd()
	if err != nil {
		e.t.Fatal(err)
	}
	for _, m := range e.Members {
		if err := errors.Join(m.srv.kill(), os.RemoveAll(m.dataDir())); err != nil {
			e.t.Fatal(err)
		}
		restore(m)
	}
	var servers []*own
	for _, m := range e.Members {
		m.own.server = m.process(path)
		servers = append(servers, m.own)
	}
	if err := startAll(servers); err != nil {
		e.t.Fatal(err)
	}
}

// Environment returns what an operator knows of the member, as environment variables: NAME, DATA, PEER and
// CLUSTER for etcdctl snapshot restore, and the variables with which etcdctl reaches the member.
func (m *EtcdMember) Environment() []string {
	return []string{"NAME=" + m.name, "DATA=" + m.dataDir(), "PEER=" + m.peerURL(), "CLUSTER=" + m.cluster.initial(), "ETCDCTL_API=3", "ETCDCTL_ENDPOINTS=" + m.Addr()}
}

// Token returns the cluster's token.
func (e *Etcd) Token() string { return e.token }

var errNoLeader = errors.New("etcd has no leader")

// Leader waits until a member leads, and returns that member.
func (e *Etcd) Leader() (leader *EtcdMember) {
	e.t.Helper()
	Eventually(e.t, readyWithin, func() error {
		for _, m := range e.Members {
			if running(m.srv) && m.leads() {
				leader = m
				return nil
			}
		}
		return errNoLeader
	})
	return leader
}

func (m *EtcdMember) leads() bool {
	m.t.Helper()
	const leads = 4 // the column
	fields := strings.Split(m.ctl("endpoint", "status"), ",")
	return len(fields) > leads && strings.TrimSpace(fields[leads]) == "true"
}

// Follower returns a running member that does not lead.
func (e *Etcd) Follower() *EtcdMember {
	e.t.Helper()
	leader := e.Leader()
	for _, m := range e.Members {
		if m != leader && running(m.srv) {
			return m
		}
	}
	e.t.Fatal("testenv: etcd has no follower")
	return nil
}

func findEtcd() (string, error) {
	look := func() string {
		server, err1 := exec.LookPath("etcd")
		_, err2 := exec.LookPath("etcdctl")
		if err1 != nil || err2 != nil {
			return ""
		}
		return server
	}
	if look() == "" {
		if err := aptInstall([]string{"etcd-server", "etcd-client"}, func() bool { return look() != "" }); err != nil {
			return "", fmt.Errorf("no etcd on this machine: %w", err)
		}
	}
	return look(), nil
}
