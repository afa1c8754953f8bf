package demo

import (
	"fmt"
	"strconv"
	"time"
)

// timeline is a round laid out in time, for the terminal and for the page.
type timeline struct {
	Length time.Duration
	Lanes  []lane
	Marks  []mark // in their order
	Money  []span // the balance over time
}

// lane is a worker's part: what it did, and its leases as it may believe in them.
type lane struct {
	Who          Actor
	Does, Leases []span
}

// span is something that lasts.
type span struct {
	Class    string // run, wait, stopped, lease or money, with the worker's letter where it is its
	From, To time.Duration
	Texts    []string // what to write there, the longest first
}

// Mid is the instant in the middle.
func (s span) Mid() time.Duration { return (s.From + s.To) / 2 }

// mark is a moment at which a worker met the account: Read, Wrote or Refused.
type mark struct {
	Event

	Lossy bool // it wrote over what it had not read
}

func layOut(r Round) timeline {
	t := timeline{Lanes: []lane{{Who: WorkerA}, {Who: WorkerB}}}
	for _, e := range r.Events {
		t.Length = max(t.Length, e.At)
	}
	t.Length += t.Length / 10 // room after the last write
	balance := span{Class: "money", Texts: []string{strconv.Itoa(opening)}}
	there := int64(opening)
	for _, e := range r.Events {
		t.lane(e.Who).add(e, t.Length)
		switch e.Kind {
		case Read, Refused:
			t.Marks = append(t.Marks, mark{Event: e})
		case Wrote:
			m := mark{Event: e, Lossy: e.Balance != there+depositOf(e.Who)}
			t.Marks = append(t.Marks, m)
			balance.To = e.At
			t.Money = append(t.Money, balance)
			balance = span{Class: "money " + m.Class(), From: e.At, Texts: []string{strconv.FormatInt(e.Balance, 10)}}
			there = e.Balance
		}
	}
	balance.To = t.Length
	t.Money = append(t.Money, balance)
	return t
}

func (t timeline) lane(who Actor) *lane {
	if who == WorkerA {
		return &t.Lanes[0]
	}
	return &t.Lanes[1]
}

// add follows the worker by one event.
func (l *lane) add(e Event, end time.Duration) {
	if e.Kind == Ended {
		return // which it does not see
	}
	doing := ""
	if n := len(l.Does); n > 0 {
		l.Does[n-1].To = e.At
		doing = l.Does[n-1].Class
	}
	begin := func(class string, texts ...string) {
		l.Does = append(l.Does, span{Class: class, From: e.At, To: e.At, Texts: texts})
	}
	switch e.Kind {
	case Started, Continued:
		begin("run")
	case Held:
		begin("wait", "waits in the queue", "waits")
	case Stopped:
		begin("stopped", "stopped (SIGSTOP)", "stopped")
	case Acquired:
		if doing == "wait" {
			begin("run")
		}
		l.Leases = append(l.Leases, span{
			Class: "lease", From: e.At, To: min(e.At+e.Left, end),
			Texts: []string{fmt.Sprintf("token %d", e.Token), "token " + short(e.Token), short(e.Token)},
		})
	case Released:
		if n := len(l.Leases); n > 0 {
			l.Leases[n-1].To = min(l.Leases[n-1].To, e.At)
		}
	}
}

// Class says how to show the mark: as the worker's, or as bad.
func (m mark) Class() string {
	if m.Kind == Refused || m.Lossy {
		return "bad"
	}
	return string(m.Who)
}

// note says what went wrong, or nothing.
func (m mark) note() string {
	switch {
	case m.Kind == Refused:
		return "refused: 412 stale-token"
	case m.Lossy:
		return string(m.Who.other()) + "'s deposit is overwritten"
	default:
		return ""
	}
}

// Ticks are about six instants, at round numbers.
func (t timeline) Ticks() (ticks []time.Duration) {
	step := 100 * time.Millisecond
	for next := 0; t.Length/step >= 7; next++ { // 0.1, 0.2, 0.5, 1, 2, 5 …
		if next%3 == 1 {
			step = step * 5 / 2
		} else {
			step *= 2
		}
	}
	for at := time.Duration(0); at < t.Length; at += step {
		ticks = append(ticks, at)
	}
	return ticks
}

// tickText is a tick's label.
func tickText(at time.Duration) string {
	return strconv.FormatFloat(at.Seconds(), 'f', -1, 64) + " s"
}
