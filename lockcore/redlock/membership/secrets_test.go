package membership

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// knowing makes the server observe nodes that have these secrets.
func knowing(m *Controller, now time.Time, nodes ...node.Secrets) {
	for i, secrets := range nodes {
		m.seen.add(i, node.Observation{Admitted: true, Cluster: m.cluster, Epoch: 1, Marks: node.Marks{Secrets: secrets}}, nil, now)
	}
	m.adoptSecrets(now)
}

// A secret opens lease ids as soon as one node has it. It seals them only after a quorum has had it for so long that
// every server in touch with a quorum knows it.
func TestWhichSecretSeals(t *testing.T) {
	var using [][]byte
	cfg := testConfig()
	cfg.Secrets = func(secrets [][]byte) { using = secrets }
	m, now := New(cfg, fakes(3)), time.Now()
	one, two, three := someSecret(1, 1), someSecret(2, 2), someSecret(3, 3)
	uses := func(what string, sealing node.Secrets, opening ...node.Secrets) {
		t.Helper()
		var want [][]byte
		for _, s := range append([]node.Secrets{sealing}, opening...) {
			raw := s.List()[0].Raw
			want = append(want, raw[:])
		}
		if !slices.EqualFunc(using, want, bytes.Equal) {
			t.Fatalf("%s: other secrets", what)
		}
	}
	knowing(m, now, one)
	if using != nil {
		t.Error("one node of three is believed")
	}
	knowing(m, now, one, one)
	uses("the first secret, on a quorum", one)
	knowing(m, now, two+","+one, one, one)
	uses("a new one on one node", one, two)
	now = now.Add(time.Hour)
	knowing(m, now, two+","+one, one, one)
	uses("on one node for an hour", one, two)
	knowing(m, now, two+","+one, two+","+one, one)
	uses("on a quorum just now", one, two)
	now = now.Add(m.cfg.inTouch() - time.Millisecond)
	knowing(m, now, two+","+one, two+","+one, one)
	uses("not for long enough", one, two)
	now = now.Add(time.Millisecond)
	knowing(m, now, two+","+one, two+","+one, one)
	uses("for long enough", two, one)
	knowing(m, now, two+","+one, three+","+two, two)
	uses("the next one", two, three)
	m.seen.add(0, node.Observation{}, errFake, now) // as it was last seen
	knowing(m, now)
	uses("a node that does not answer", two, three)
	knowing(m, now, "", "", "")
	uses("no node has any more", two, three)
}

func someSecret(epoch node.Epoch, seed byte) node.Secrets {
	return node.NewSecrets(epoch, [node.MinSecretBytes]byte{seed})
}
