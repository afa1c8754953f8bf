package redlock

import (
	"testing"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// The token of a lease is the grant that a quorum shares, in whatever order the replies come and however large
// another grant is. If no quorum shares a grant, it is the largest grant.
func TestTokenOfTheReplies(t *testing.T) {
	for _, c := range []struct {
		grants []fencing.Token // of each node; 0 if another owner has the lock there
		want   fencing.Token
	}{
		{[]fencing.Token{7, 7, 7, 9, 0}, 7},
		{[]fencing.Token{9, 7, 7, 7, 0}, 7},
		{[]fencing.Token{7, 9, 7, 7, 7}, 7},
		{[]fencing.Token{7, 7, 9, 0, 0}, 9},
		{[]fencing.Token{9, 7, 7, 8, 0}, 9},
		{[]fencing.Token{0, 0, 0, 0, 3}, 3},
		{[]fencing.Token{0, 0, 0, 0, 0}, 0},
	} {
		b := newBallot(len(c.grants))
		for i, grant := range c.grants {
			reply := node.Reply{Outcome: node.Held, Owner: "other", Grant: 99}
			if grant > 0 {
				reply = node.Reply{Outcome: node.Held, Owner: "owner", Grant: grant}
			}
			b.add(i, reply)
		}
		if got := b.holdingOf("owner").token; got != c.want {
			t.Errorf("grants %v: the token is %d, want %d", c.grants, got, c.want)
		}
	}
}
