package chaos

import (
	"net/http"
	"testing"
	"time"
)

const ms = time.Millisecond

// looksAt are looks of 10 ms, 100 ms apart, all of which show the same.
func looksAt(from, to time.Duration, label string) (looks []look) {
	for t := from; t < to; t += 100 * ms {
		looks = append(looks, look{from: t, to: t + 10*ms, held: label != "", label: label})
	}
	return looks
}

// waiter waits for r all the time.
func waiter() *op {
	return &op{Kind: opAcquire, Label: "w", Key: "w", Names: []string{"r"}, Sent: 0, Done: 20 * time.Second, Wait: time.Minute}
}

// grant is the answer to a client that is called a, at 1 s, for a lease of 5 s.
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
		looks []look
		want  vacancy // none if it has no kind
	}{
		"free, and nobody waits":               {nil, idle, vacancy{}},
		"free, and somebody waits":             {[]*op{waiter()}, idle, vacancy{"idle", causeFree, false}},
		"free after a poll that was abandoned": {[]*op{waiter(), {Kind: opAcquire, Poll: true, Status: 409, Done: 1900 * ms}}, looksAt(2*time.Second, 3800*ms, ""), vacancy{"idle", causePlace, true}},
		"free, and a waiter for several":       {[]*op{{Kind: opAcquire, Several: true, Done: 20 * time.Second, Wait: time.Minute}}, idle, vacancy{}},
		"held":                                 {[]*op{waiter(), grant()}, taken, vacancy{}},
		"held by a lock without a label": {[]*op{waiter(), keyed(grant(), func(o *op) { o.Parts = []leased{{"r", 7}} })}, func() []look {
			looks := looksAt(2*time.Second, 4*time.Second, "a")
			for i := range looks {
				looks[i].label, looks[i].token = "", 7
			}
			return looks
		}(), vacancy{}},
		"held, and nobody waits":       {[]*op{grant(), ended(opRelease, 1500*ms, 204)}, taken, vacancy{}},
		"released and still locked":    {[]*op{waiter(), grant(), ended(opRelease, 1500*ms, 204)}, taken, vacancy{"orphaned", causeReleased, false}},
		"cancelled and still locked":   {[]*op{waiter(), keyed(grant(), lost), ended(opCancel, 1500*ms, 204)}, taken, vacancy{"orphaned", causeCancelled, false}},
		"a release that got no answer": {[]*op{waiter(), grant(), ended(opRelease, 1500*ms, 0)}, taken, vacancy{"orphaned", causeNoRelease, true}},
		"a holder that died":           {[]*op{waiter(), keyed(grant(), lost), ended(opDied, 1500*ms, 0)}, taken, vacancy{"orphaned", causeDied, true}},
		"a dead holder's lock outlives its TTL": {
			[]*op{waiter(), grant(), ended(opDied, 1500*ms, 0)}, looksAt(7*time.Second, 9*time.Second, "a"), vacancy{"orphaned", causeUnknown, false},
		},
		"an answer lost without a key":   {[]*op{waiter(), func() *op { o := grant(); lost(o); return o }()}, taken, vacancy{"orphaned", causeNoKey, true}},
		"an answer lost, and abandoned":  {[]*op{waiter(), keyed(grant(), lost)}, taken, vacancy{"orphaned", causeUnknown, false}},
		"a repeat that waits for itself": {[]*op{waiter(), keyed(grant(), lost), keyed(grant(), func(o *op) { lost(o); o.Sent, o.Done = 1500*ms, 20*time.Second })}, taken, vacancy{"orphaned", causeUnfound, false}},
		"several, others of which it waits for": {
			[]*op{waiter(), keyed(grant(), func(o *op) { lost(o); o.Several, o.Done = true, 20*time.Second })}, taken, vacancy{},
		},
		"parts of a poll that ended": {
			[]*op{waiter(), keyed(grant(), func(o *op) { o.Several, o.Poll, o.Status, o.Done = true, true, 409, 1950*ms })}, looksAt(2*time.Second, 3900*ms, "a"), vacancy{"orphaned", causeParts, true},
		},
		"a lock that nobody asked for": {[]*op{waiter()}, taken, vacancy{"orphaned", causeUnknown, false}},
		"an extend for a shorter time": {[]*op{
			waiter(), keyed(grant(), func(o *op) { o.Validity = 900 * ms }),
		}, taken, vacancy{"orphaned", causeLonger, true}},
		"a minimum hold": {[]*op{
			waiter(), keyed(grant(), func(o *op) { o.MinHold = 4 * time.Second }), ended(opRelease, 1500*ms, 200),
		}, taken, vacancy{"orphaned", causeMinimum, true}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newVacant("r", c.ops)
			v.judge(c.looks)
			if c.want.Kind == "" {
				if len(v.sums) > 0 {
					t.Errorf("vacant: %s", v.sums)
				}
				return
			}
			if got := v.sums[c.want]; len(v.sums) != 1 || got < time.Second {
				t.Errorf("%s, want more than a second of %q", v.sums, c.want)
			}
		})
	}
}

// Time in which the machine was late, or that no look has seen, does not count.
func TestVacancyIsSeen(t *testing.T) {
	v := newVacant("r", []*op{waiter()})
	looks := looksAt(2*time.Second, 4*time.Second, "")
	v.late = []time.Duration{3 * time.Second}
	v.judge(looks)
	whole := v.sums.sum("idle", false)
	if want := 19 * 90 * ms; whole >= want || whole < want-300*ms {
		t.Errorf("%s with a machine that was late once, want a little less than %s", whole, want)
	}
	v = newVacant("r", []*op{waiter()})
	v.judge([]look{looks[0], looks[len(looks)-1]})
	if sum := v.sums.sum("idle", false); sum != 0 {
		t.Errorf("%s between two looks that are far apart", sum)
	}
}
