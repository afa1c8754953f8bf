package conformance

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// corners are scenarios of the program around the client: a callback raises an error, a caller gives up
// twice, a client is closed, a thousand calls come at once, an option is out of every service's range.
// They are part of the table, and the rules in judge.go hold in each of them.
var corners = slices.Concat(callbacks, losses, endings, deadlines, bursts, options)

// raise says which calls of a callback raise an error. From is the first such call, counted from 1;
// Times is how many calls raise, 0 for all.
type raise struct {
	Callback string `json:"callback"` // credential, on_retry or on_lost; credential is called for each request
	From     int    `json:"from"`
	Times    int    `json:"times,omitempty"`
}

// raises makes one callback raise errors.
func raises(callback string, from, times int) []raise { return []raise{{callback, from, times}} }

// pairAndSettle acquires and releases, and leaves time for what the client does in the background.
func pairAndSettle(wait int64) []order { return []order{take(10000, wait), letGo, settle} }

// callbacks: if a callback raises an error, keep-alive and release still work, or the caller gets the
// error.
var callbacks = []scenario{
	{
		name: "the credential raises once while acquiring", why: "the caller sees its own error, or the call is repeated; nothing is in doubt",
		raises: raises("credential", 1, 1), orders: pairAndSettle(5000), goesOn: true,
		trace: "(acquire@1=201 release@1=204)?", results: "(acquired 1; released|raised; none); paused",
	},
	{
		name: "the credential always raises while acquiring", why: "the caller sees its own error",
		raises: raises("credential", 1, 0), orders: pairAndSettle(1000), goesOn: true,
		trace: "", results: "raised; none; paused",
	},
	{
		name: "the credential raises once while waiting", why: "the wait continues, or its place is given up: it would be granted the resource for nobody",
		held: 1500 * time.Millisecond, longestPoll: 300 * time.Millisecond,
		raises: raises("credential", 2, 1), orders: pairAndSettle(5000), goesOn: true,
		trace: "acquire@1=409( acquire@1=409){0,5}( acquire@1=201 release@1=204| cancel@1=204)", results: "(acquired 1; released|raised; none); paused",
	},
	{
		name: "the credential always raises while waiting", why: "the caller sees its own error",
		held: 1500 * time.Millisecond, longestPoll: 300 * time.Millisecond,
		raises: raises("credential", 2, 0), orders: pairAndSettle(2000), goesOn: true,
		trace: "acquire@1=409", results: "raised; none; paused",
	},
	{
		name: "the credential raises once while renewing", why: "an extend that was not sent is a try that failed: it is repeated while the lease lives",
		raises: raises("credential", 2, 1), orders: []order{work(3000, 3750)},
		trace: "acquire@1=201( extend@1=200){2,4} release@1=204", results: "worked",
	},
	{
		name: "the credential always raises while renewing", why: "the work learns that the lease ends: it may not continue without a word",
		raises: raises("credential", 2, 0), orders: []order{work(3000, 10000)}, leaves: true,
		trace: "acquire@1=201", results: "lost", notified: span{1400 * time.Millisecond, 3 * time.Second},
	},
	{
		name: "the credential raises once while releasing", why: "the resource would be locked for nobody until the TTL passes",
		raises: raises("credential", 2, 1), orders: []order{work(5000, 100), settle},
		trace: "acquire@1=201 release@1=204", results: "(worked|raised); paused",
	},
	{
		name: "the credential always raises while releasing", why: "the work is done; its caller is not to wait for the release",
		raises: raises("credential", 2, 0), orders: []order{work(5000, 100)}, leaves: true,
		trace: "acquire@1=201", results: "worked|raised", within: 3 * time.Second,
	},
	{
		name: "the credential raises once while standing for election", why: "the caller sees its own error, or stands again",
		raises: raises("credential", 1, 1), orders: []order{elect(3000, 500)},
		trace: "(acquire@1=201( extend@1=200)* release@1=204)?", results: "resigned|raised",
	},
	{
		name: "the credential always raises while leading", why: "a leader learns that it is none any more",
		raises: raises("credential", 2, 0), orders: []order{{Do: "elect", Resource: resource, TTLMS: 3000, WorkMS: 10000, CancelAfter: 5000}}, leaves: true,
		trace: "acquire@1=201", results: "raised|cancelled|lost|unavailable", notified: span{1400 * time.Millisecond, 3 * time.Second},
	},
	{
		name: "on_retry always raises while acquiring", why: "what the failed try may have been granted is ended, or the try is repeated",
		faults: []fault{{on: acquire, nth: 1, status: http.StatusServiceUnavailable, kind: "no-quorum", effect: true}},
		raises: raises("on_retry", 1, 0), orders: pairAndSettle(5000), goesOn: true,
		trace: "acquire@1=503( acquire@1=200 release@1=204| cancel@1=204)", results: "(acquired 2; released|raised; none); paused",
	},
	{
		name: "on_retry always raises while renewing", why: "an observer's error doesn't end a lease",
		faults: []fault{{on: extend, nth: 1, status: http.StatusServiceUnavailable, kind: "no-quorum"}},
		raises: raises("on_retry", 1, 0), orders: []order{work(3000, 3750)},
		trace: "acquire@1=201 extend@1=503( extend@1=200){2,4} release@1=204", results: "worked",
	},
	{
		name: "on_lost raises", why: "the work is notified all the same",
		faults: []fault{{on: extend, nth: 2, ends: true}}, raises: raises("on_lost", 1, 0),
		orders: []order{{Do: "work", Resource: resource, TTLMS: 3000, WorkMS: 10000, OnLost: true}},
		trace:  "acquire@1=201 extend@1=200 extend@1=404( release@1=404)*", results: "lost|raised", notified: span{1600 * time.Millisecond, 2600 * time.Millisecond},
	},
}

// elect leads for ms milliseconds, unless it loses the leadership earlier.
func elect(ttl, ms int64) order {
	return order{Do: "elect", Resource: resource, TTLMS: ttl, WorkMS: ms}
}

// losses: every caller that asked to be notified of a loss is notified.
var losses = []scenario{
	{
		name: "on_lost is called for work", why: "it is how a caller stops what doesn't look at the lease",
		faults: []fault{{on: extend, nth: 2, ends: true}}, orders: []order{{Do: "work", Resource: resource, TTLMS: 3000, WorkMS: 10000, OnLost: true}},
		trace: "acquire@1=201 extend@1=200 extend@1=404( release@1=404)*", results: "lost", notified: span{1600 * time.Millisecond, 2600 * time.Millisecond},
		also: []rule{{"on_lost is called once", onLostCalled}},
	},
	{
		name: "on_lost is called for a leader", why: "it is how a leader stops what doesn't look at the lease",
		faults: []fault{{on: extend, nth: 2, ends: true}}, orders: []order{{Do: "elect", Resource: resource, TTLMS: 3000, WorkMS: 2600, OnLost: true}},
		trace: leadsTwice, results: "resigned", notified: span{1600 * time.Millisecond, 2600 * time.Millisecond},
		also: []rule{{"on_lost is called once", onLostCalled}},
	},
	{
		name: "a leader loses its leadership", why: "it stops, and stands for election again",
		faults: []fault{{on: extend, nth: 2, ends: true}}, orders: []order{elect(3000, 2600)},
		trace: leadsTwice, results: "resigned", notified: span{1600 * time.Millisecond, 2600 * time.Millisecond},
		also: []rule{{"it leads twice", func(r run) error {
			if terms := r.steps[0].terms; terms != 2 {
				return fmt.Errorf("it led %d times", terms)
			}
			return nil
		}}},
	},
	{
		name: "the process does nothing else until the lease is over", why: "no timer and no task has run: the first look at the lease compares the clock",
		faults: []fault{{on: extend, status: 1, cut: true}}, overdue: true,
		orders: []order{{Do: "work", Resource: resource, TTLMS: 3000, WorkMS: 10000, BusyMS: 4000}},
		trace:  "acquire@1=201( extend@1=(cut|gone))*( release@1=(204|404))?", results: "lost", notified: span{3900 * time.Millisecond, 4300 * time.Millisecond},
	},
}

// leadsTwice is the trace of a leader that learns at its second extend that its lease has ended.
const leadsTwice = "acquire@1=201 extend@1=200 extend@1=404( release@1=404)* acquire@1=201( extend@1=200){1,4} release@1=204"

func onLostCalled(r run) error {
	if n := r.steps[0].lostCalls; n != 1 {
		return fmt.Errorf("it was called %d times", n)
	}
	return nil
}

// endings: a caller that gives up at any point leaves no lease behind, and neither does a client that is
// closed.
var endings = []scenario{
	{
		name: "a caller gives up twice", why: "a second cancel must not break off the cancel of the request",
		faults: []fault{{on: acquire, nth: 1, after: 5 * time.Second}, {on: cancel, nth: 1, before: 100 * time.Millisecond}},
		orders: []order{{Do: "acquire", Resource: resource, TTLMS: 5000, WaitMS: 5000, CancelAfter: 600, CancelAgain: 30}, settle},
		trace:  "acquire@1=gone( cancel@1=(gone|204))* cancel@1=204", results: "cancelled; paused",
	},
	{
		name: "work is given up", why: "an exception that leaves the work takes the lease with it",
		orders: []order{{Do: "work", Resource: resource, TTLMS: 5000, WorkMS: 8000, CancelAfter: 500}, settle},
		trace:  "acquire@1=201 release@1=204", results: "(worked|cancelled); paused", within: 3 * time.Second,
	},
	{
		name: "work is given up twice, the second time at its exit", why: "a second exception must not skip the release",
		faults: []fault{{on: release, nth: 1, before: 150 * time.Millisecond}},
		orders: []order{{Do: "work", Resource: resource, TTLMS: 10000, WorkMS: 8000, CancelAfter: 500, CancelAgain: 50}, settle},
		trace:  "acquire@1=201( release@1=gone)*( release@1=(204|404))+", results: "(worked|cancelled); paused", within: 4 * time.Second,
	},
	{
		name: "work is given up, and no server answers a release", why: "whoever gives up is in a hurry: the release continues in the background",
		faults: []fault{{on: release, freeze: true}}, leaves: true,
		orders: []order{{Do: "work", Resource: resource, TTLMS: 10000, WorkMS: 8000, CancelAfter: 500}, settle},
		trace:  "acquire@1=201( release@1=gone)+", results: "(worked|cancelled); paused", within: 1200 * time.Millisecond,
	},
	{
		name: "a client is closed while it works", why: "what it held would be locked for nobody until the TTL passes",
		orders: []order{{Do: "work", Resource: resource, TTLMS: 10000, WorkMS: 9000, CloseAfter: 500}},
		trace:  "acquire@1=201 release@1=204", results: "worked|cancelled|lost|refused", within: 3 * time.Second, ifLate: closedAtOnce,
		notified: span{400 * time.Millisecond, 2 * time.Second},
	},
	{
		name: "a client is closed while it works, and no server answers", why: "a program that ends does not wait for the lock service",
		faults: []fault{{on: release, freeze: true}}, leaves: true,
		orders: []order{{Do: "work", Resource: resource, TTLMS: 10000, WorkMS: 9000, CloseAfter: 500}},
		trace:  "acquire@1=201( release@1=gone)+", results: "worked|cancelled|lost|refused", within: 7 * time.Second, ifLate: closedAtOnce,
		notified: span{400 * time.Millisecond, 2 * time.Second},
	},
	{
		name: "the service restarts, and a call without a wait has a patience of its own", why: "not to queue is not to give up",
		faults: []fault{{on: acquire, lasting: 2 * time.Second, status: 1, cut: true}},
		orders: []order{{Do: "acquire", Resource: resource, TTLMS: 10000, PatienceMS: 6000}, letGo},
		trace:  "acquire@1=cut( acquire@1=cut)+ acquire@1=201 release@1=204", results: "acquired 1; released",
		ifLate: "acquire@1=cut( acquire@1=cut)+ acquire@1=201( acquire@1=200)* release@1=204", resultsIfLate: `acquired \d+; released`,
	},
	{
		name: "409 to a call without a wait that has a patience of its own", why: "a held resource is an answer",
		held: time.Minute, orders: []order{{Do: "acquire", Resource: resource, TTLMS: 10000, PatienceMS: 6000}},
		trace: "acquire@1=409", results: "held", within: 2 * time.Second,
	},
}

// closedAtOnce is the trace of a client that was closed before it had its lease.
const closedAtOnce = "(acquire@1=(201|gone) )*cancel@1=204"

// deadlines: a caller whose time is over learns whether it waited for the resource or for a server.
var deadlines = []scenario{
	{
		name: "the caller's time is over while another holds the resource", why: "held and unreachable need different help; the place in the queue would be granted the resource for nobody",
		held: time.Minute, orders: []order{hurried, settle},
		trace: "acquire@1=(409|gone( cancel@1=204| inspect@1=200)+)", results: "held, timed out; paused", within: 5 * time.Second,
	},
	{
		name: "the caller's time is over after polls that found the resource held", why: "the last response says what the call waited for",
		held: time.Minute, longestPoll: 300 * time.Millisecond, orders: []order{hurried, settle},
		trace: "acquire@1=409( acquire@1=409)*( acquire@1=gone)?( cancel@1=204| inspect@1=200)*", results: "held, timed out; paused", within: 5 * time.Second,
	},
	{
		name: "the caller's time is over, and no server is up", why: "nobody holds the resource, as far as the client knows",
		outage: true, patience: 15 * time.Second, orders: []order{hurried},
		trace: "", results: "unavailable, timed out", within: 4 * time.Second,
	},
	{
		name: "the caller's time is over, and no quorum was found", why: "the last response says what the call waited for",
		faults: []fault{{on: acquire, status: http.StatusServiceUnavailable, kind: "no-quorum"}}, patience: 15 * time.Second, orders: []order{hurried, settle},
		trace: "acquire@1=503( acquire@1=503)*( acquire@1=gone)? cancel@1=204", results: "unavailable, timed out; paused", within: 5 * time.Second,
	},
}

// hurried is an acquire that may wait for longer than its caller has time.
var hurried = order{Do: "acquire", Resource: resource, TTLMS: 10000, WaitMS: 30000, DeadlineMS: 1000}

// mostConnections is the maximum number of connections that a client may have open to one server.
const mostConnections = 256

// bursts: a client opens only the connections that it can use, and time in the client's own queue does
// not count against a call.
var bursts = []scenario{
	burst("a thousand calls at once, while a hundred leases are held", "the try of a call that waits in the client's own queue has not begun", 0),
	burst("a thousand calls at once that may wait, while a hundred leases are held", "a call that may wait is not yet one that waits", 30000),
}

// burst has a server that handles 1,600 requests a second, so that a thousand pairs (2,000 requests)
// take 1.25 s.
func burst(name, why string, wait int64) scenario {
	return scenario{
		name: name, why: why, atOnce: 16, takes: 10 * time.Millisecond, alone: true,
		orders: []order{{Do: "burst", Resource: "burst", TTLMS: 5000, WorkMS: 6000, WaitMS: wait, PatienceMS: 15000, Keep: 100, Calls: 1000}},
		trace:  ".*", results: "burst: 1000 calls done, 100 leases kept",
		ifLate: ".*", resultsIfLate: "burst: (9[0-9][0-9]|1000) calls done, 100 leases kept", within: 40 * time.Second,
		also: []rule{{"connections are bounded", func(r run) error {
			limit := mostConnections
			if r.kept() { // a busy server notices late which connections the client has closed
				limit *= 2
			}
			if n := r.service.mostConns; n > limit {
				return fmt.Errorf("%d were open to a server, want %d at most", n, limit)
			}
			return nil
		}}},
	}
}

// option returns an acquire that no service can grant, whatever its settings.
func option(o order) order {
	o.Do, o.Resource = "acquire", resource
	return o
}

// long returns a name of the given number of bytes.
func long(bytes int) string { return string(slices.Repeat([]byte("x"), bytes)) }

func names(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprint(resource, i))
	}
	return all
}

// options that no service accepts are refused before anything is sent: by the compiler, or with an
// error.
var options = []scenario{
	refused("a TTL that no service accepts", "0 means the service's own, and a negative one would be cut off or wrap",
		option(order{TTLMS: -1}), option(order{TTLMS: 99}), option(order{TTLMS: 25 * 3600 * 1000})),
	refused("slots that no service has", "Slots(0) would take the plain lock, and a semaphore without a limit is none",
		option(order{Slots: new(0)}), option(order{Slots: new(-1)}), option(order{Slots: new(33)})),
	refused("a minimum hold above the TTL", "the service refuses it, if it is asked", option(order{TTLMS: 1000, MinHoldMS: 2000}), option(order{TTLMS: 1000, MinHoldMS: -1})),
	refused("a longest hold below the TTL", "the service refuses it, if it is asked", option(order{TTLMS: 2000, MaxHoldMS: 1000}), option(order{TTLMS: 1000, MaxHoldMS: -1})),
	refused("names that no service accepts", "empty, of 257 bytes, or with a control character", option(order{Resources: []string{""}}), option(order{Resources: []string{long(257)}}), option(order{Resources: []string{"a\nb"}})),
	refused("resources that no service takes together", "17 of them, one twice, or slots of two", option(order{Resources: names(17)}), option(order{Resources: []string{"a", "a"}}), option(order{Resources: names(2), Slots: new(2)})),
	refused("a holder that no service accepts", "of 300 bytes, or with a control character", option(order{Holder: long(300)}), option(order{Holder: "a\nb"})),
	refused("a negative wait", "it is not no wait", option(order{WaitMS: -1})),
	refused("a negative margin", "the work would go on after its lease", order{Do: "work", Resource: resource, TTLMS: 3000, WorkMS: 10, MarginMS: new(int64(-2000))}),
}

// refused returns a scenario in which every order is refused, and no request is sent.
func refused(name, why string, orders ...order) scenario {
	return scenario{name: name, why: why, orders: orders, results: "refused" + strings.Repeat("; refused", len(orders)-1), within: 3 * time.Second}
}
