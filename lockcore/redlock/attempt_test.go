package redlock

import (
	"fmt"
	"slices"
	"testing"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// event is one input of an attempt.
type event struct {
	name string
	node int
	do   func(*attempt) effects
}

func votes(node int, r node.Reply) event {
	return event{fmt.Sprintf("node %d: %+v", node, r), node, func(a *attempt) effects { return a.voted(node, r) }}
}

var (
	votesDue    = event{"votes are due", -1, (*attempt).votesDue}
	confirmsDue = event{"confirms are due", -1, (*attempt).confirmsDue}
	abandoned   = event{"the caller goes away", -1, (*attempt).abandon}
)

func grant(token fencing.Token) node.Reply { return node.Reply{Outcome: node.Granted, Grant: token} }

var unanswered = node.Reply{Outcome: node.Failed, Err: errNoAnswer, Sent: true}

// Three nodes reply in every order, with replies from a small alphabet, and the caller may go away or the time limit
// may pass at any moment. Each effect happens once, for the right nodes, and no vote of a lost attempt is left.
func TestAttemptInEveryOrder(t *testing.T) {
	replies := []node.Reply{grant(5), grant(7), {Outcome: node.Granted, Grant: 6, Existing: true}, {Outcome: node.Held}, unanswered, {Outcome: node.NotAdmitted}}
	runs := 0
	for _, r0 := range replies {
		for _, r1 := range replies {
			for _, r2 := range replies {
				for _, interruption := range []event{votesDue, confirmsDue, abandoned} {
					events := []event{votes(0, r0), votes(1, r1), votes(2, r2), interruption}
					permute(events, func(order []event) {
						for _, keyed := range []bool{false, true} {
							for _, confirms := range []node.Outcome{node.Granted, node.NotHeld} {
								runs++
								checkRun(t, order, keyed, confirms)
							}
						}
					})
				}
			}
		}
	}
	if want := 6 * 6 * 6 * 3 * 24 * 4; runs != want {
		t.Errorf("%d runs, want %d", runs, want)
	}
}

// permute calls f with every order of the events.
func permute(events []event, f func([]event)) {
	var rest func(k int)
	rest = func(k int) {
		if k == len(events) {
			f(events)
			return
		}
		for i := k; i < len(events); i++ {
			events[k], events[i] = events[i], events[k]
			rest(k + 1)
			events[k], events[i] = events[i], events[k]
		}
	}
	rest(0)
}

// checkRun plays the events. A node replies to a confirm at once.
func checkRun(t *testing.T, order []event, keyed bool, confirms node.Outcome) {
	t.Helper()
	a := newAttempt(3, keyed, true)
	var all []effects
	var take func(e effects)
	take = func(e effects) {
		all = append(all, e)
		e.confirm.each(func(i int) { take(a.confirmed(i, node.Reply{Outcome: confirms})) })
	}
	for _, ev := range order {
		take(ev.do(&a))
	}
	take(a.confirmsDue()) // the last limit, if nothing else decided it
	if err := a.judge(all, keyed); err != nil {
		names := []string{fmt.Sprintf("keyed: %t, confirms: %d", keyed, confirms)}
		for _, ev := range order {
			names = append(names, ev.name)
		}
		t.Fatalf("%v, after %q", err, names)
	}
}

// judge compares the effects of an attempt with its verdict.
func (a *attempt) judge(all []effects, keyed bool) error {
	var sum effects
	answers := 0
	for _, e := range all {
		for _, pair := range [][2]nodeSet{
			{sum.confirm, e.confirm}, {sum.retract | sum.retractAbove, e.retract | e.retractAbove}, {sum.dequeue, e.dequeue},
		} {
			if pair[0]&pair[1] != 0 {
				return fmt.Errorf("an effect twice: %+v after %+v", e, sum)
			}
		}
		sum.confirm, sum.retract, sum.retractAbove = sum.confirm|e.confirm, sum.retract|e.retract, sum.retractAbove|e.retractAbove
		sum.dequeue |= e.dequeue
		if e.answer {
			answers++
		}
	}
	if answers != 1 || a.verdict == quorum.Pending {
		return fmt.Errorf("%d answers, %s", answers, a.verdict)
	}
	for i := range a.n {
		if err := a.judgeNode(i, sum, keyed); err != nil {
			return err
		}
	}
	if a.verdict == quorum.Won {
		return a.judgeToken()
	}
	return nil
}

func (a *attempt) judgeNode(i int, sum effects, keyed bool) error {
	r, token := a.replies[i], a.tally.Token()
	may := a.answered.has(i) && (r.Outcome == node.Granted || r.Outcome == node.Failed && r.Sent)
	above := may && (r.Outcome != node.Granted || r.Grant > token)
	switch {
	case sum.retract.has(i) != (may && a.verdict == quorum.Lost):
		return fmt.Errorf("%s, node %d retracts: %t", a.verdict, i, sum.retract.has(i))
	case sum.retractAbove.has(i) != (above && keyed && a.verdict == quorum.Won):
		return fmt.Errorf("%s, node %d retracts above %d: %t", a.verdict, i, token, sum.retractAbove.has(i))
	case sum.confirm.has(i) && (r.Outcome != node.Granted || r.Grant >= token):
		return fmt.Errorf("node %d was asked to confirm %d", i, token)
	case sum.dequeue.has(i) != (a.verdict == quorum.Won && a.answered.has(i) && (a.keyed || r.Outcome != node.Granted || r.Existing)):
		return fmt.Errorf("%s, node %d dequeues: %t", a.verdict, i, sum.dequeue.has(i))
	}
	return nil
}

// judgeToken checks that a quorum holds the token, and that it is one of the grants.
func (a *attempt) judgeToken() error {
	counting := 0
	var grants []fencing.Token
	for i := range a.n {
		if a.tally.Counts(i) {
			counting++
			grants = append(grants, a.replies[i].Grant)
		}
	}
	if counting < quorum.Of(a.n) || slices.Max(grants) != a.tally.Token() {
		return fmt.Errorf("won with token %d by %d nodes that granted %v", a.tally.Token(), counting, grants)
	}
	return nil
}

// The response of a lost attempt waits until the reason for the loss is known, or the time is over.
func TestLostAttemptIsExplained(t *testing.T) {
	held, failed := node.Reply{Outcome: node.Held}, node.Reply{Outcome: node.Failed}
	for _, c := range []struct {
		replies []node.Reply
		at      int // the node with which the answer goes out
	}{
		{[]node.Reply{held, held, held}, 2},
		{[]node.Reply{held, failed, failed, held, held}, 4},
		{[]node.Reply{failed, failed, failed}, 2}, // no quorum of votes can come any more
	} {
		a := newAttempt(5, false, false)
		for i, reply := range c.replies {
			if e := a.voted(i, reply); e.answer != (i == c.at) {
				t.Errorf("%+v: after node %d the answer goes out: %t", c.replies, i, e.answer)
			}
		}
	}
	b := newAttempt(5, false, false)
	b.voted(0, node.Reply{Outcome: node.Held})
	if e := b.votesDue(); !e.answer || e.noAnswer != 0b11110 {
		t.Errorf("%+v", e)
	}
}

// The retractions are made in the same step as the response, so that a following attempt does not find the votes of
// this one.
func TestAttemptRetractsWithTheAnswer(t *testing.T) {
	a := newAttempt(3, false, false)
	a.voted(0, grant(5))
	a.voted(1, node.Reply{Outcome: node.Held})
	if e := a.voted(2, node.Reply{Outcome: node.Held}); !e.answer || e.retract != 0b001 {
		t.Errorf("%+v", e)
	}
	// A rejoin may give the votes of two nodes to the third, before they are retracted.
	b := newAttempt(3, false, false)
	b.voted(0, grant(5))
	b.voted(1, node.Reply{Outcome: node.NotAdmitted})
	if e := b.voted(2, node.Reply{Outcome: node.Failed, Sent: true}); e.retract != 0b101 || e.retractLater != 0b010 {
		t.Errorf("a node without admission: %+v", e)
	}
	c := newAttempt(3, false, false)
	c.voted(0, grant(5))
	c.voted(1, node.Reply{Outcome: node.NotAdmitted})
	if e := c.voted(2, node.Reply{Outcome: node.Held}); e.retractLater != 0 {
		t.Errorf("one vote is given to no node: %+v", e)
	}
	late := newAttempt(3, false, false)
	late.abandon()
	if e := late.voted(0, grant(5)); e.retract != 0b001 || e.answer {
		t.Errorf("a vote that comes late: %+v", e)
	}
}
