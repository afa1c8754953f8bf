package testenv

import (
	"bytes"
	"net/http"
	"slices"
	"testing"
)

// peerLines are the connections between the members of an etcd. Each member has a router, which finds the member that
// opened a connection in the connection's first request.
type peerLines struct {
	isolated []bool    // by member
	to       []*Router // by member; the clients are the members and, last, all that do not name themselves
}

func startPeerLines(t testing.TB, members []*EtcdMember) *peerLines {
	t.Helper()
	p := &peerLines{isolated: make([]bool, len(members)+1)}
	whose := func(first []byte) (client int, known bool) {
		head, _, whole := bytes.Cut(first, []byte("\r\n\r\n"))
		if !whole {
			return 0, false
		}
		from := slices.IndexFunc(members, func(m *EtcdMember) bool { return m.peerURL() == peerOf(head) })
		if from < 0 {
			from = len(members)
		}
		return from, true
	}
	for _, m := range members {
		p.to = append(p.to, StartRouter(t, localAddr(m.peer), localAddr(m.behind), len(members)+1, whose))
	}
	return p
}

// peerOf returns the URL of the member that sends a request; "" if the request does not name it.
func peerOf(head []byte) string {
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		name, value, _ := bytes.Cut(line, []byte(": "))
		if http.CanonicalHeaderKey(string(name)) == "X-Peerurls" {
			return string(value)
		}
	}
	return ""
}

// set isolates a member, or lets it rejoin. When the member rejoins, its connections are reset, because
// their streams lack the data that was lost.
func (p *peerLines) set(member int, isolated bool) {
	p.isolated[member] = isolated
	for to, router := range p.to {
		for from, line := range router.proxies {
			switch {
			case from != member && to != member || from == to:
			case p.isolated[from] || p.isolated[to]:
				line.Cut(CutBlackhole)
			default:
				line.heal()
			}
		}
	}
}

func (m *EtcdMember) peerURL() string { return "http://" + localAddr(m.peer) }

// Isolate cuts the member off from the other members, but not from clients: everything that it sends to them,
// or they to it, is lost. It needs EtcdOptions.Lines.
func (m *EtcdMember) Isolate() { m.cluster.lines.set(slices.Index(m.cluster.Members, m), true) }

// Rejoin ends Isolate.
func (m *EtcdMember) Rejoin() { m.cluster.lines.set(slices.Index(m.cluster.Members, m), false) }
