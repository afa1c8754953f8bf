package chaos

import (
	"net/http"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/vacancy"
)

const ms = time.Millisecond

// looksAt returns looks at the queue that take 10 ms each, 100 ms apart, and all show the same.
func looksAt(from, to time.Duration, label string) (looks []vacancy.Look) {
	for t := from; t < to; t += 100 * ms {
		looks = append(looks, vacancy.Look{From: t, To: t + 10*ms, Held: label != "", Label: label})
	}
	return looks
}

// waiter is a caller that waits for r all the time.
func waiter() *op {
	return &op{Kind: opAcquire, Label: "w", Key: "w", Names: []string{"r"}, Sent: 0, Done: 20 * time.Second, Wait: time.Minute}
}

// grant is the response to a client called a, at 1 s, with a lease of 5 s.
func grant() *op {
	return &op{
		Kind: opAcquire, Label: "a", Names: []string{"r"}, Sent: 1000 * ms, Done: 1010 * ms, Status: http.StatusCreated,
		TTL: 5000 * ms, Validity: 4900 * ms, Token: 7,
	}
}

func ended(kind string, at time.Duration, status int) *op {
	return &op{Kind: kind, Label: "a", Key: "k", Sent: at, Done: at + 10*ms, Status: status, Token: 7}
}

func TestVacancies(t *testing.T) {
	keyed := func(o *op, change func(*op)) *op {
		o.Key = "k"
		change(o)
		return o
	}
	lost := func(o *op) { o.Status = 0 }
	idle := looksAt(2*time.Second, 4*time.Second, "")
	taken := looksAt(2*time.Second, 4*time.Second, "a")
	for name, c := range map[string]struct {
		ops   []*op
		looks []vacancy.Look
		want  vacancy.Cause // none if it has no kind
	}{
		"free, and nobody waits":               {nil, idle, vacancy.Cause{}},
		"free, and somebody waits":             {[]*op{waiter()}, idle, because(vacancy.Idle, causeFree, false)},
		"free after a poll that was abandoned": {[]*op{waiter(), {Kind: opAcquire, Poll: true, Status: 409, Done: 1900 * ms}}, looksAt(2*time.Second, 3800*ms, ""), because(vacancy.Idle, causePlace, true)},
		"free, and a waiter for several":       {[]*op{{Kind: opAcquire, Several: true, Done: 20 * time.Second, Wait: time.Minute}}, idle, vacancy.Cause{}},
		"held":                                 {[]*op{waiter(), grant()}, taken, vacancy.Cause{}},
		"held by a lock without a label": {[]*op{waiter(), keyed(grant(), func(o *op) { o.Parts = []leased{{"r", 7}} })}, func() []vacancy.Look {
			looks := looksAt(2*time.Second, 4*time.Second, "a")
			for i := range looks {
				looks[i].Label, looks[i].Token = "", 7
			}
			return looks
		}(), vacancy.Cause{}},
		"held, and nobody waits":       {[]*op{grant(), ended(opRelease, 1500*ms, 204)}, taken, vacancy.Cause{}},
		"released and still locked":    {[]*op{waiter(), grant(), ended(opRelease, 1500*ms, 204)}, taken, because(vacancy.Orphaned, causeReleased, false)},
		"cancelled and still locked":   {[]*op{waiter(), keyed(grant(), lost), ended(opCancel, 1500*ms, 204)}, taken, because(vacancy.Orphaned, causeCancelled, false)},
		"a release that got no answer": {[]*op{waiter(), grant(), ended(opRelease, 1500*ms, 0)}, taken, because(vacancy.Orphaned, causeNoRelease, true)},
		"a holder that died":           {[]*op{waiter(), keyed(grant(), lost), ended(opDied, 1500*ms, 0)}, taken, because(vacancy.Orphaned, causeDied, true)},
		"a dead holder's lock outlives its TTL": {
			[]*op{waiter(), grant(), ended(opDied, 1500*ms, 0)}, looksAt(7*time.Second, 9*time.Second, "a"), because(vacancy.Orphaned, causeUnknown, false),
		},
		"an answer lost without a key":   {[]*op{waiter(), func() *op { o := grant(); lost(o); return o }()}, taken, because(vacancy.Orphaned, causeNoKey, true)},
		"an answer lost, and abandoned":  {[]*op{waiter(), keyed(grant(), lost)}, taken, because(vacancy.Orphaned, causeUnknown, false)},
		"a repeat that waits for itself": {[]*op{waiter(), keyed(grant(), lost), keyed(grant(), func(o *op) { lost(o); o.Sent, o.Done = 1500*ms, 20*time.Second })}, taken, because(vacancy.Orphaned, causeUnfound, false)},
		"several, others of which it waits for": {
			[]*op{waiter(), keyed(grant(), func(o *op) { lost(o); o.Several, o.Done = true, 20*time.Second })}, taken, vacancy.Cause{},
		},
		"parts of a poll that ended": {
			[]*op{waiter(), keyed(grant(), func(o *op) { o.Several, o.Poll, o.Status, o.Done = true, true, 409, 1950*ms })}, looksAt(2*time.Second, 3900*ms, "a"), because(vacancy.Orphaned, causeParts, true),
		},
		"a lock that nobody asked for": {[]*op{waiter()}, taken, because(vacancy.Orphaned, causeUnknown, false)},
		"an extend for a shorter time": {[]*op{
			waiter(), keyed(grant(), func(o *op) { o.Validity = 900 * ms }),
		}, taken, because(vacancy.Orphaned, causeLonger, true)},
		"a minimum hold": {[]*op{
			waiter(), keyed(grant(), func(o *op) { o.MinHold = 4 * time.Second }), ended(opRelease, 1500*ms, 200),
		}, taken, because(vacancy.Orphaned, causeMinimum, true)},
	} {
		t.Run(name, func(t *testing.T) {
			sums := vacancy.Sums{}
			sums.Count(newVacant("r", c.ops).judge(c.looks))
			if c.want.Kind == "" {
				if len(sums) > 0 {
					t.Errorf("vacant: %s", sums)
				}
				return
			}
			if got := sums[c.want]; len(sums) != 1 || got < time.Second {
				t.Errorf("%s, want more than a second of %q", sums, c.want)
			}
		})
	}
}

// Time does not count against the service if the machine was late then.
func TestVacancyOfALateMachine(t *testing.T) {
	v := newVacant("r", []*op{waiter()})
	v.late = []time.Duration{3 * time.Second}
	sums := vacancy.Sums{}
	sums.Count(v.judge(looksAt(2*time.Second, 4*time.Second, "")))
	whole := sums.Of(vacancy.Idle, false)
	if want := 19 * 90 * ms; whole >= want || whole < want-300*ms {
		t.Errorf("%s with a machine that was late once, want a little less than %s", whole, want)
	}
}
