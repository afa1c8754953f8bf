package demo

import "time"

// at makes an event.
func at(ms int, who Actor, kind Kind, change ...func(*Event)) Event {
	e := Event{Who: who, Kind: kind, At: time.Duration(ms) * time.Millisecond}
	for _, c := range change {
		c(&e)
	}
	return e
}

func amount(n int64) func(*Event)  { return func(e *Event) { e.Balance = n } }
func token(n int64) func(*Event)   { return func(e *Event) { e.Token = n } }
func highest(n int64) func(*Event) { return func(e *Event) { e.Highest = n } }
func left(ms int) func(*Event) {
	return func(e *Event) { e.Left = time.Duration(ms) * time.Millisecond }
}

func processID(n int) func(*Event) { return func(e *Event) { e.PID = n } }

// lost returns a typical round without a guard.
func lost() Round {
	r := Round{Telling: told().Rounds[0]}
	r.Final, r.Events = 130, []Event{
		at(0, WorkerA, Started, processID(4711)),
		at(10, WorkerA, Acquired, token(34), left(1980)),
		at(11, WorkerA, Read, amount(100)),
		at(12, WorkerA, Checked, left(1978)),
		at(210, WorkerA, Stopped),
		at(310, WorkerB, Started, processID(4712)),
		at(320, WorkerB, Held, left(1690)),
		at(1990, WorkerA, Expired),
		at(2010, WorkerB, Acquired, token(35), left(1970)),
		at(2011, WorkerB, Read, amount(100)),
		at(2012, WorkerB, Checked, left(1968)),
		at(2412, WorkerB, Wrote, amount(120)),
		at(2413, WorkerB, Released),
		at(2820, WorkerA, Continued),
		at(2821, WorkerA, Wrote, amount(130)),
		at(2822, WorkerA, TooLate),
	}
	return r
}

// kept returns a typical round with the guard, and with the long tokens of a real cluster.
func kept() Round {
	const t = 1795168220055
	r := Round{Telling: told().Rounds[1]}
	r.Final, r.Events = 150, []Event{
		at(0, WorkerA, Started, processID(4713)),
		at(10, WorkerA, Acquired, token(t), left(1980)),
		at(11, WorkerA, Read, amount(100), token(t)),
		at(12, WorkerA, Checked, left(1978)),
		at(210, WorkerA, Stopped),
		at(310, WorkerB, Started, processID(4714)),
		at(320, WorkerB, Held, left(1690)),
		at(1990, WorkerA, Expired),
		at(2010, WorkerB, Acquired, token(t+1), left(1970)),
		at(2011, WorkerB, Read, amount(100), token(t+1)),
		at(2012, WorkerB, Checked, left(1968)),
		at(2412, WorkerB, Wrote, amount(120), token(t+1)),
		at(2413, WorkerB, Released),
		at(2820, WorkerA, Continued),
		at(2821, WorkerA, Refused, token(t), highest(t+1)),
		at(2825, WorkerA, Acquired, token(t+2), left(1980)),
		at(2826, WorkerA, Read, amount(120), token(t+2)),
		at(2827, WorkerA, Checked, left(1978)),
		at(3227, WorkerA, Wrote, amount(150), token(t+2)),
		at(3228, WorkerA, Released),
	}
	return r
}

func report(rounds ...Round) Report {
	return Report{
		Backend: "one embedded node, guarded records in the embedded file",
		Account: "accounts/alice",
		TTL:     2 * time.Second,
		Begun:   time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Version: "v1.2.3",
		Rounds:  rounds,
	}
}
