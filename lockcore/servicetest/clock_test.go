package servicetest_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// late is how long after the end of its wait a request may get its response.
const late = 200 * time.Millisecond

// A wait whose time is over gets its response although the nodes do not reply, whatever its request is doing then: it
// waits behind others, tries, keeps a place, waits for slots, or has a part of a bundle. That covers every engine,
// because a node whose store is blocked does the same on each: nothing.
func TestAWaitEndsByTheClock(t *testing.T) {
	rows := []struct {
		name string
		req  lockcore.Request
	}{
		{"first", lockcore.Request{Resource: "r"}},
		{"behind", lockcore.Request{Resource: "r"}},
		{"keyed", lockcore.Request{Resource: "r", IdempotencyKey: "key"}},
		{"poll", lockcore.Request{Resource: "r", IdempotencyKey: "poll", Poll: 3 * time.Second}},
		{"slots", lockcore.Request{Resource: "s", Slots: 2}},
		{"bundle", lockcore.Request{Resources: []string{"a", "b"}}},
		{"keyed bundle", lockcore.Request{Resources: []string{"c", "d"}, IdempotencyKey: "key"}},
	}
	for phase := time.Duration(0); phase < 2*time.Second; phase += 190 * time.Millisecond {
		t.Run(fmt.Sprintf("blocked %s before the end", phase), func(t *testing.T) {
			overNodes(t, 2, func(c *cluster) {
				for _, resource := range []string{"r", "b", "d"} {
					c.take(1, lockcore.Request{Resource: resource, TTL: time.Minute})
				}
				for range 2 {
					c.take(1, lockcore.Request{Resource: "s", Slots: 2, TTL: time.Minute})
				}
				began := time.Now()
				var all []*waiting
				for _, one := range rows {
					one.req.Wait, one.req.TTL = 3*time.Second, time.Minute
					if one.req.Poll > 0 {
						one.req.Wait = time.Minute
					}
					all = append(all, c.wait(0, one.req))
				}
				time.Sleep(time.Until(began.Add(3*time.Second - phase)))
				c.servers[0].stop() // for the clock nothing stops: what it sends is not replied to
				for i, w := range all {
					<-w.ended
					end := began.Add(3*time.Second + time.Duration(i)*10*time.Millisecond)
					if off := w.at.Sub(end); off < 0 || off > late {
						c.Errorf("%s: %s after its end: %v", rows[i].name, off, w.err)
					}
					saysWhatIsKnown(c, rows[i].name, rows[i].req, w.err, phase)
				}
			})
		})
	}
}

// saysWhatIsKnown checks a response that was made without the nodes. It names the lease that the last attempt found
// in the way, or says that this attempt found no quorum.
func saysWhatIsKnown(c *cluster, name string, req lockcore.Request, err error, blocked time.Duration) {
	c.Helper()
	const attempt = time.Second // until it has found no quorum
	if errors.Is(err, lockcore.ErrNoQuorum) && blocked+late > attempt {
		return
	}
	timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err)
	if !ok || timeout.Token == 0 || timeout.Remaining <= 0 || timeout.Position == 0 || timeout.Kept != (req.Poll > 0) {
		c.Errorf("%s: %v", name, err)
	}
}

// An attempt that is under way at the end of the wait does not delay the response.
func TestAnAttemptEndsWithItsWait(t *testing.T) {
	overNodes(t, 2, func(c *cluster) {
		lease := c.take(1, lockcore.Request{Resource: "r", TTL: time.Minute})
		began := time.Now()
		req := lockcore.Request{Resource: "r", Wait: 3 * time.Second, TTL: time.Minute}
		w := c.wait(0, req)
		time.Sleep(time.Until(began.Add(2900 * time.Millisecond)))
		c.servers[0].deafen()
		c.release(1, lease) // wakes it
		<-w.ended
		if off := w.at.Sub(began.Add(req.Wait)); !errors.Is(w.err, lockcore.ErrWaitTimeout) || off > late {
			c.Errorf("%s after its end: %v", off, w.err)
		}
		c.servers[0].goOn()
		time.Sleep(soon)
		c.take(1, lockcore.Request{Resource: "r"}) // what it was granted then was retracted
	})
}
