package zkstore

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

// For a server that starts, entries never seem older than they are. Entries that one server has written without a
// stop have their real age.
func TestTheClock(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		synctest.Test(t, func(t *testing.T) { t.Helper(); runClocks(t, r) })
	})
}

func runClocks(t *testing.T, r *rapid.T) {
	t.Helper()
	var log []entry
	var sent []time.Time // of each
	var left []reading
	servers := make([]*clock, rapid.IntRange(1, 3).Draw(r, "servers"))
	start := func() *clock {
		c := &clock{}
		ages := c.begin(log, left)
		for i, age := range ages {
			if truth := time.Since(sent[i]); age > truth {
				t.Fatalf("entry %d was sent %s ago, and is taken for one of %s", i+1, truth, age)
			}
			if truth := time.Since(sent[i]); len(servers) == 1 && len(left) > 0 && truth-age > time.Duration(len(log)+2)*time.Millisecond {
				t.Fatalf("entry %d was sent %s ago, and is taken for one of %s", i+1, truth, age)
			}
		}
		return c
	}
	for i := range servers {
		servers[i] = start()
	}
	wait := func() { time.Sleep(time.Duration(rapid.IntRange(0, 5000).Draw(r, "ms")) * time.Millisecond) }
	for range rapid.IntRange(1, 30).Draw(r, "steps") {
		s := rapid.IntRange(0, len(servers)-1).Draw(r, "server")
		c := servers[s]
		switch rapid.SampledFrom([]string{"commit", "commit", "read", "restart", "wait"}).Draw(r, "step") {
		case "commit": // it has read everything, some of it long after it was written
			for i := range log {
				c.saw(log[i].number, log[i].noted, time.Now())
			}
			before := time.Now()
			at, _ := c.read()
			e := entry{number: int64(len(log) + 1), noted: at.now}
			log, sent = append(log, e), append(sent, before)
			wait()
			c.saw(e.number, e.noted, before)
		case "read":
			if at, known := c.read(); known {
				left = []reading{at}
			}
		case "restart":
			if at, known := c.read(); known {
				left = []reading{at}
			}
			servers[s] = start()
		case "wait":
			wait()
		}
	}
}
