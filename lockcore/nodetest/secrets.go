package nodetest

import (
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// secrets are kept in the admission record, returned by a fenced read, and replaced by
// compare-and-set.
func secrets(s *suite) {
	first, second := node.NewSecrets(7, [node.MinSecretBytes]byte{7}), node.NewSecrets(8, [node.MinSecretBytes]byte{8})
	a := s.bootstrap(100)
	a.Secrets = first
	s.must(s.Node.Stage(s.Context(), a))
	s.wantErr(node.ErrNotAdmitted, s.Node.ReplaceSecrets(s.Context(), "", first))
	if got := s.observe().Marks.Secrets; got != "" {
		s.Errorf("a staged node keeps %s", got)
	}
	s.must(s.Node.Admit(s.Context(), a))
	s.epoch = a.Epoch
	s.keeps(first)
	s.wantErr(node.ErrRaced, s.Node.ReplaceSecrets(s.Context(), second, second))
	s.wantErr(node.ErrRaced, s.Node.ReplaceSecrets(s.Context(), "", second))
	s.keeps(first)
	s.must(s.Node.ReplaceSecrets(s.Context(), first, second))
	s.must(s.Node.ReplaceSecrets(s.Context(), second, second))
	s.keeps(second)
	s.Node.Join(node.Cluster{Nodes: 3, Hash: "beef"})
	s.wantErr(node.ErrNotAdmitted, s.Node.ReplaceSecrets(s.Context(), second, first))
	s.Node.Join(s.cluster)
	marks, err := s.Node.InstallEpoch(s.Context(), s.epoch+1)
	s.must(err)
	s.epoch++
	if marks.Secrets != second {
		s.Errorf("a fenced read gives %s, want %s", marks.Secrets, second)
	}
}

// beyondReach: an operation with a token that the cluster cannot have reached (rule 23)
// is refused and changes nothing.
func beyondReach(s *suite) {
	floor := max(100, node.FloorAt(time.Now()))
	s.admit(floor)
	s.want(acquire("held", "L1"), granted(s.base+1, longTTL))
	for _, token := range []fencing.Token{5e15, fencing.MaxToken - 1, fencing.MaxToken} {
		for _, op := range []node.Op{
			confirm("held", "L1", token), extend("held", "L1", token, longTTL), extend("free", "L2", token, longTTL),
			release("held", "L1", token), release("free", "L2", token), release("held", "L2", token),
		} {
			if reply := s.do(op); reply.Outcome != node.Failed {
				s.Errorf("%+v: %+v", op, reply)
			}
		}
	}
	s.want(read("held"), locked(s.base+1, "L1", longTTL))
	s.want(read("free"), outcome(node.NotHeld))
	s.wantHighWater(s.base + 1)
	s.wantCounter("free", s.base+1)
	// A node may have missed the grants of a minute.
	s.want(release("free", "L2", s.base+1+node.MaxTokensAhead), outcome(node.NotHeld))
	s.want(acquire("free", "L3"), granted(s.base+node.MaxTokensAhead+3, longTTL))
}

func (s *suite) keeps(want node.Secrets) {
	s.Helper()
	if got := s.observe().Marks.Secrets; got != want {
		s.Errorf("the node keeps %s, want %s", got, want)
	}
}
