package membership

import (
	"testing"
	"time"
)

// clockAt makes a reading of a clock that is ahead by a duration. It was asked for at an instant of the test, with a
// round trip; late says which part of the round trip passed before the clock was read.
func clockAt(at, ahead, trip time.Duration, late float64) reading {
	asked := time.Unix(1_000_000, 0).Add(at)
	shown := ahead + time.Duration(float64(trip)*late) // at the start of the trip
	return reading{at: asked, min: shown - trip, max: shown, ahead: shown - trip/2}
}

const look = 250 * time.Millisecond

func TestOrdinaryClocksDoNotJump(t *testing.T) {
	hour := time.Hour
	for name, ahead := range map[string]func(at time.Duration) time.Duration{
		"steady":                        func(time.Duration) time.Duration { return hour },
		"skew of 500 in a million":      func(at time.Duration) time.Duration { return at / 2000 },
		"skew of 1 %":                   func(at time.Duration) time.Duration { return -at / 100 },
		"a step of 90 ms":               func(at time.Duration) time.Duration { return step(at, 90*time.Millisecond) },
		"slewed by a whole second":      func(at time.Duration) time.Duration { return min(at/1000, time.Second) },
		"one reading at a wrong moment": func(at time.Duration) time.Duration { return glitch(at, 2) },
	} {
		var c clockWatch
		for i := range 20_000 {
			at := time.Duration(i) * look
			trip := time.Duration(i%97) * time.Millisecond // as far as a reading is taken at all
			if c.take(clockAt(at, ahead(at), trip, float64(i%7)/6)) {
				t.Fatalf("%s: a jump by %s at %s", name, c.jump, at)
			}
		}
	}
}

func step(at, by time.Duration) time.Duration {
	if at > time.Minute {
		return by
	}
	return 0
}

func glitch(at time.Duration, looks int) time.Duration {
	if i := int(at / look); i%100 < looks && i > 99 {
		return time.Hour
	}
	return 0
}

func TestJumpsAreSeen(t *testing.T) {
	for _, by := range []time.Duration{250 * time.Millisecond, -250 * time.Millisecond, time.Hour, -time.Hour} {
		var c clockWatch
		at, jumped := time.Duration(0), time.Duration(0)
		for ; at < 2*time.Minute && jumped == 0; at += look {
			if c.take(clockAt(at, step(at, by), 20*time.Millisecond, float64(at%7)/6)) {
				jumped = at
			}
		}
		if jumped <= time.Minute || jumped > time.Minute+clockConfirm*look || (c.jump-by).Abs() > 60*time.Millisecond {
			t.Errorf("a step by %s after a minute was seen after %s as one by %s", by, jumped, c.jump)
		}
		if ahead := c.ahead(); ahead.Abs() > time.Second { // the median changes with the majority of readings
			t.Errorf("ahead by %s already", ahead)
		}
		c.settle()
		for end := at + time.Minute; at < end; at += look {
			if c.take(clockAt(at, by, time.Millisecond, 0.5)) {
				t.Fatal("reported twice")
			}
		}
		if ahead := c.ahead(); (ahead - by).Abs() > 10*time.Millisecond {
			t.Errorf("ahead by %s, want %s", ahead, by)
		}
	}
}

func TestHistoryBeginsAgainAfterAGap(t *testing.T) {
	var c clockWatch
	c.take(clockAt(0, 0, time.Millisecond, 0))
	for i := range 10 {
		if at := clockGap + time.Second + time.Duration(i)*look; c.take(clockAt(at, time.Hour, time.Millisecond, 0)) {
			t.Fatal("a jump across a gap")
		}
	}
}

func TestWhoseClockJumped(t *testing.T) {
	base := time.Unix(1_000_000, 0)
	steady := clockWatch{began: base, steady: base.Add(10 * time.Second)}
	fresh := clockWatch{began: base.Add(6 * time.Second), steady: base.Add(10 * time.Second)} // unreachable until after the jump
	unseen := clockWatch{began: base, steady: base.Add(4 * time.Second)}
	jumped := clockWatch{began: base, steady: base.Add(5 * time.Second), jump: time.Hour, since: base.Add(5 * time.Second)}
	other := jumped
	other.jump = -time.Minute
	for name, c := range map[string]struct {
		clocks      []clockWatch
		expel, ours int
		own         ownJump
	}{
		"one of three":                   {[]clockWatch{jumped, steady, steady}, 1, 0, ownJump{}},
		"one of five":                    {[]clockWatch{steady, jumped, steady, steady, steady}, 1, 0, ownJump{}},
		"two of five":                    {[]clockWatch{steady, jumped, steady, other, steady}, 2, 0, ownJump{}},
		"two of five alike":              {[]clockWatch{steady, jumped, steady, jumped, steady}, 2, 0, ownJump{}},
		"two of three alike":             {[]clockWatch{jumped, steady, jumped}, 0, 2, ownJump{}},
		"all":                            {[]clockWatch{jumped, jumped, jumped}, 0, 3, ownJump{}},
		"the only one":                   {[]clockWatch{jumped}, 0, 1, ownJump{}},
		"one, and the others not known":  {[]clockWatch{jumped, {}, {}}, 0, 0, ownJump{}},
		"one, and another not known":     {[]clockWatch{jumped, steady, {}}, 0, 0, ownJump{}},
		"one, and another not seen yet":  {[]clockWatch{jumped, steady, unseen}, 0, 0, ownJump{}},
		"one, and another seen too late": {[]clockWatch{jumped, steady, fresh}, 0, 0, ownJump{}},
		"two of three, each another way": {[]clockWatch{jumped, steady, other}, 0, 0, ownJump{}},
		"one more after the others":      {[]clockWatch{jumped, steady, steady}, 0, 1, ownJump{by: time.Hour, at: base.Add(4 * time.Second)}},
		"one by itself after the others": {[]clockWatch{other, steady, steady}, 1, 0, ownJump{by: time.Hour, at: base.Add(4 * time.Second)}},
		"one long after the others":      {[]clockWatch{jumped, steady, steady}, 1, 0, ownJump{by: time.Hour, at: base.Add(-time.Hour)}},
		"none":                           {[]clockWatch{steady, steady, steady}, 0, 0, ownJump{}},
	} {
		if v := judgeClocks(c.clocks, c.own); len(v.expel) != c.expel || len(v.ours) != c.ours {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// If two readings are far apart, the tolerance is larger, because ordinary clocks drift further.
func TestRareReadingsAllowForSkew(t *testing.T) {
	var c clockWatch
	for i := range 1000 {
		at := time.Duration(i) * (clockGap - 5*time.Second)
		if c.take(clockAt(at, at/700, time.Millisecond, 0.5)) {
			t.Fatalf("a jump by %s after %s", c.jump, at)
		}
		if len(c.contradicting) > 0 { // as good as a jump once there are three
			t.Fatalf("suspected after %s", at)
		}
	}
}
