package testenv

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// peerLines forward the connections between the members of an etcd. The first request of a connection names
// the member that opened it.
type peerLines struct {
	running sync.WaitGroup

	mu       sync.Mutex
	isolated map[string]bool // by the URL that a member advertises
	open     map[*peerLine]struct{}
	ended    bool
}

// peerLine is one connection.
type peerLine struct {
	from, to string // from is "" if the request does not name its member
	client   net.Conn
	server   net.Conn // nil before it is connected
}

func (l *peerLine) close() {
	_ = l.client.Close()
	if l.server != nil {
		_ = l.server.Close()
	}
}

func newPeerLines() *peerLines {
	return &peerLines{isolated: make(map[string]bool), open: make(map[*peerLine]struct{})}
}

// serve forwards connections to a member until end is called.
func (p *peerLines) serve(m *EtcdMember) (end func(), err error) {
	listener, err := net.Listen("tcp", localAddr(m.peer))
	if err != nil {
		return nil, err
	}
	p.running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			p.running.Go(func() { p.connect(conn, m) })
		}
	})
	return func() { _ = listener.Close() }, nil
}

// connect forwards one connection.
func (p *peerLines) connect(client net.Conn, m *EtcdMember) {
	line := &peerLine{to: m.peerURL(), client: client}
	defer line.close()
	var first bytes.Buffer
	line.from = requestFrom(io.TeeReader(client, &first))
	server, err := net.DialTimeout("tcp", localAddr(m.behind), 5*time.Second)
	if err != nil {
		return
	}
	line.server = server
	if !p.add(line) {
		return
	}
	defer p.remove(line)
	if p.passes(line) {
		if _, err := server.Write(first.Bytes()); err != nil {
			return
		}
	}
	var both sync.WaitGroup
	both.Go(func() { p.copy(line, server, client) })
	both.Go(func() { p.copy(line, client, server) })
	both.Wait()
}

// requestFrom returns the URL of the member that sends a request; "" if the request does not name it.
func requestFrom(from io.Reader) string {
	const most = 16 << 10
	var head []byte
	for one := make([]byte, 1); len(head) < most && !bytes.HasSuffix(head, []byte("\r\n\r\n")); head = append(head, one...) {
		if _, err := io.ReadFull(from, one); err != nil {
			return ""
		}
	}
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(": "))
		if http.CanonicalHeaderKey(string(name)) == "X-Peerurls" {
			return string(value)
		}
	}
	return ""
}

func (p *peerLines) copy(line *peerLine, to io.Writer, from io.Reader) {
	defer line.close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && p.passes(line) {
			_, failed := to.Write(buffer[:n])
			err = errors.Join(err, failed)
		}
		if err != nil {
			return
		}
	}
}

func (p *peerLines) add(line *peerLine) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open[line] = struct{}{}
	return !p.ended
}

func (p *peerLines) remove(line *peerLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.open, line)
}

func (p *peerLines) passes(line *peerLine) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.isolated[line.from] && !p.isolated[line.to]
}

// set isolates a member, or lets it rejoin. When the member rejoins, its connections are closed, because
// their streams lack the data that was lost.
func (p *peerLines) set(m *EtcdMember, isolated bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isolated[m.peerURL()] = isolated
	if isolated {
		return
	}
	for line := range p.open {
		if line.from == m.peerURL() || line.to == m.peerURL() {
			line.close()
		}
	}
}

// close ends all connections.
func (p *peerLines) close() {
	p.mu.Lock()
	p.ended = true
	for line := range p.open {
		line.close()
	}
	p.mu.Unlock()
	p.running.Wait()
}

func (m *EtcdMember) peerURL() string { return "http://" + localAddr(m.peer) }

// Isolate cuts the member off from the other members, but not from clients: everything that it sends to them,
// or they to it, is lost. It needs EtcdOptions.Lines.
func (m *EtcdMember) Isolate() { m.cluster.lines.set(m, true) }

// Rejoin ends Isolate.
func (m *EtcdMember) Rejoin() { m.cluster.lines.set(m, false) }
