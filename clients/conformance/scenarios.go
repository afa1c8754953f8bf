package conformance

import (
	"net/http"
	"slices"
	"time"
)

// resource is what every scenario locks.
const resource = "orders/42"

// scenario is one row of the table: what happens to a client, and what a correct client does. trace and
// results are regular expressions that must match the whole text. The rules in judge.go must hold in
// each scenario as well.
type scenario struct {
	name string
	why  string // what goes wrong if a client behaves differently

	servers     int           // addresses of the service; 1 unless set
	down        int           // this server refuses connections
	outage      bool          // all servers refuse connections
	held        time.Duration // how long another client's lease holds the resource, from the first request on
	longestPoll time.Duration // the longest wait that the service allows in one request
	maxHold     time.Duration // the longest time for which a lease can be held, however often it is extended
	faults      []fault

	atOnce int           // how many requests a server handles at once; 0 for any number
	takes  time.Duration // how long each of them takes
	alone  bool          // no other scenario is played at the same time, because the client needs the machine
	raises []raise       // the callbacks of the client that raise an error

	patience time.Duration // the client's patience; 3 s if 0
	timeout  time.Duration // the client's timeout; 600 ms if 0
	orders   []order
	trace    string        // calls and their outcomes, without probes: "acquire@1=cut acquire@1=200"
	results  string        // what the client reported: "acquired 2; released"
	ifLate   string        // also a correct trace if the client got no processor in time; it may then report "unavailable"
	within   time.Duration // the longest time that the scenario may take, without its pauses; 10 s if 0
	notified span          // when the work was notified of the loss, counted from when it began
	leaves   bool          // a lease may be left to expire
	// resultsIfLate matches the reports of a client that got no processor in time: calls without a wait
	// have one second each.
	resultsIfLate string
	overdue       bool   // the work did not look at its lease until the lease was over
	goesOn        bool   // if an acquire fails, its release is skipped and the next orders follow; otherwise the scenario ends
	also          []rule // more rules for this scenario

	moveClock func(time.Duration)
}

// span is an interval of time; the zero span means that the event did not happen.
type span struct{ from, to time.Duration }

// fault is what happens to a call. nth counts the calls of one kind over all servers.
type fault struct {
	on     call
	nth    int // 0 for every call
	from   int // this call and all later ones; 0 for no lower limit
	server int // 0 for any

	lasting     time.Duration // how long the fault lasts, from the first request on; 0 for always
	before      time.Duration // how long the server does nothing before it handles the call
	status      int           // the status of the response; the call has no effect unless effect is set
	kind        string        // the problem type of the response; "" for a proxy's page
	retryAfter  string
	redirects   bool          // the response redirects to another path of this server
	effect      bool          // the call takes effect, whatever the response says
	after       time.Duration // how long the response comes after the effect
	cut         bool          // the connection is reset instead of a response
	half        bool          // half a response is sent, then the connection is reset
	freeze      bool          // the server freezes: connections stay open, nothing is answered
	freezeAfter time.Duration // the server freezes this long after the request came
	ends        bool          // the lease has ended
	validity    time.Duration // the validity in the response
	clock       time.Duration // how far the wall clocks of the client and the server jump
}

func (f fault) problem() any {
	if f.kind == "" {
		return "<html>Bad gateway</html>"
	}
	return problem(f.status, f.kind, resource)
}

// order is one order to a driver, see README.md.
type order struct {
	Do          string `json:"do"`
	Resource    string `json:"resource,omitempty"`
	TTLMS       int64  `json:"ttl_ms,omitempty"`
	WaitMS      int64  `json:"wait_ms,omitempty"`
	WorkMS      int64  `json:"work_ms,omitempty"`
	CancelAfter int64  `json:"cancel_after_ms,omitempty"`
	CancelAgain int64  `json:"cancel_again_ms,omitempty"`
	CloseAfter  int64  `json:"close_after_ms,omitempty"`
	DeadlineMS  int64  `json:"deadline_ms,omitempty"`
	PatienceMS  int64  `json:"patience_ms,omitempty"`
	BusyMS      int64  `json:"busy_ms,omitempty"`
	OnLost      bool   `json:"on_lost,omitempty"`

	Resources []string `json:"resources,omitempty"` // instead of Resource
	Slots     *int     `json:"slots,omitempty"`
	MinHoldMS int64    `json:"min_hold_ms,omitempty"`
	MaxHoldMS int64    `json:"max_hold_ms,omitempty"`
	MarginMS  *int64   `json:"margin_ms,omitempty"`
	Holder    string   `json:"holder,omitempty"`

	Keep  int `json:"keep,omitempty"`
	Calls int `json:"calls,omitempty"`
}

func take(ttl, wait int64) order {
	return order{Do: "acquire", Resource: resource, TTLMS: ttl, WaitMS: wait}
}

func work(ttl, ms int64) order {
	return order{Do: "work", Resource: resource, TTLMS: ttl, WorkMS: ms}
}

var letGo = order{Do: "release"}

// settle gives the client time for what it does in the background after a call.
var settle = order{Do: "pause", WorkMS: 1500}

// pair takes a lease, waiting for it if necessary, and releases it. withoutWait does the same without
// waiting, so both calls must be done within a second.
var (
	pair        = []order{take(10000, 5000), letGo}
	withoutWait = []order{take(10000, 0), letGo}
)

// firstUses are played first and not judged. They cover a wait of several polls, failing tries, work
// whose lease is extended, and calls that are refused, given up, or lose their lease.
var firstUses = []scenario{{
	servers: 2, held: 200 * time.Millisecond, longestPoll: 100 * time.Millisecond,
	faults: []fault{{on: acquire, nth: 1, status: http.StatusServiceUnavailable, kind: "no-quorum"}, {on: acquire, nth: 2, cut: true}, {on: release, nth: 1, before: 5 * time.Second}},
	orders: []order{take(2000, 5000), letGo, work(300, 250)},
}, {
	faults: []fault{{on: acquire, nth: 1, status: http.StatusConflict, kind: "lock-held"}, {on: acquire, nth: 2, status: http.StatusUnauthorized, kind: "unauthorized"}, {on: acquire, nth: 3, before: time.Second}, {on: extend, nth: 1, ends: true}},
	orders: []order{take(2000, 0), take(2000, 0), {Do: "acquire", Resource: resource, TTLMS: 2000, WaitMS: 5000, CancelAfter: 50}, work(300, 250)},
}}

// Scenarios is the table.
var scenarios = []scenario{
	{
		name: "nothing goes wrong", why: "a pair is two requests",
		orders: pair, trace: "acquire@1=201 release@1=204", results: "acquired 1; released",
	},

	// The response to an acquire is lost.
	{
		name: "the answer to an acquire is lost", why: "without the same key the client locks itself out; the token of the last answer counts",
		faults: []fault{{on: acquire, nth: 1, effect: true, cut: true}},
		orders: pair, trace: "acquire@1=cut acquire@1=200 release@1=204", results: "acquired 2; released",
	},
	{
		name: "the answer to an acquire is lost, and there is no wait", why: "there is time for a second try",
		faults: []fault{{on: acquire, nth: 1, effect: true, cut: true}},
		orders: withoutWait, trace: "acquire@1=cut acquire@1=200 release@1=204", results: "acquired 2; released",
		ifLate: "acquire@1=cut( acquire@1=(200|gone))*( cancel@1=204)?",
	},
	{
		name: "half of an answer", why: "as if it was lost",
		faults: []fault{{on: acquire, nth: 1, half: true}},
		orders: pair, trace: "acquire@1=cut acquire@1=200 release@1=204", results: "acquired 2; released",
	},
	{
		name: "the answer is lost, and there are two servers", why: "the next server knows the key, too",
		servers: 2, faults: []fault{{on: acquire, nth: 1, cut: true, effect: true}},
		orders: pair, trace: "acquire@1=cut acquire@2=200 release@2=204", results: "acquired 2; released",
	},
	{
		name: "the connection is reset", why: "nothing was granted, and a repeat is safe",
		faults: []fault{{on: acquire, nth: 1, status: 1, cut: true}},
		orders: pair, trace: "acquire@1=cut acquire@1=201 release@1=204", results: "acquired 1; released",
	},
	{
		name: "a server is down", why: "the next one is asked at once",
		servers: 2, down: 1,
		orders: pair, trace: "acquire@2=201 release@2=204", results: "acquired 1; released", within: 2 * time.Second,
	},
	{
		name: "an answer takes too long", why: "a try has a time limit, and tries come one at a time",
		faults: []fault{{on: acquire, nth: 1, before: 5 * time.Second}}, timeout: 400 * time.Millisecond, // out of the one second that the call has
		orders: withoutWait, trace: "acquire@1=gone acquire@1=201 release@1=204", results: "acquired 1; released", within: 3 * time.Second,
		ifLate: "acquire@1=gone( acquire@1=(201|gone))*( cancel@1=204)?",
	},
	{
		name: "an answer comes late", why: "validity counts from when the request was sent",
		faults: []fault{{on: acquire, nth: 1, after: 1200 * time.Millisecond}}, timeout: 6 * time.Second,
		orders: []order{take(6000, 5000), letGo}, trace: "acquire@1=201 release@1=204", results: "acquired 1; released",
	},
	{
		name: "a server is frozen among two", why: "it must not cost the wait",
		servers: 2, faults: []fault{{on: acquire, server: 1, freeze: true}},
		orders: withoutWait, trace: "acquire@1=gone acquire@2=201 release@2=204", results: "acquired 1; released", within: 3 * time.Second,
		ifLate: "acquire@1=gone( acquire@2=(201|gone))*( cancel@[12]=(204|gone))*",
	},
	{
		name: "a server freezes during the wait", why: "its client would wait for the rest of it",
		servers: 2, held: 1500 * time.Millisecond, faults: []fault{{on: acquire, nth: 1, freezeAfter: 300 * time.Millisecond}},
		orders:  []order{take(10000, 40000), letGo}, // by polls, or by probes
		trace:   "acquire@1=gone acquire@2=201 release@2=204",
		results: "acquired 1; released", within: 9 * time.Second,
	},

	// A call ends when its wait is over, even if a server does not respond.
	{
		name: "no server is up", why: "a request handler has promised an answer of its own",
		servers: 2, outage: true, patience: 15 * time.Second,
		orders: []order{take(10000, 0), take(10000, 1000)}, trace: "", results: "unavailable; unavailable",
	},
	{
		name: "no server answers", why: "a request handler has promised an answer of its own",
		servers: 2, faults: []fault{{on: acquire, server: 1, freeze: true}, {on: acquire, server: 2, freeze: true}, {on: cancel, freeze: true}},
		patience: 15 * time.Second, timeout: 5 * time.Second, orders: []order{take(10000, 0), take(10000, 1000)}, trace: "acquire@1=gone acquire@2=gone.*", results: "unavailable; unavailable",
	},
	{
		name: "a server is frozen among two, and there is no wait", why: "half of the time is the second server's",
		servers: 2, timeout: 5 * time.Second, faults: []fault{{on: acquire, server: 1, freeze: true}},
		orders: withoutWait, trace: "acquire@1=gone acquire@2=201 release@2=204", results: "acquired 1; released",
		ifLate: "acquire@1=gone( acquire@2=(201|gone))*( cancel@[12]=(204|gone))*",
	},
	{
		name: "a server is frozen among two, and the wait is short", why: "a request that waits is silent: only a probe tells",
		servers: 2, timeout: 5 * time.Second, faults: []fault{{on: acquire, server: 1, freeze: true}},
		orders: []order{take(10000, 1000), letGo}, trace: "acquire@1=gone acquire@2=201 release@2=204", results: "acquired 1; released",
	},
	{
		name: "a server freezes that answered in a moment", why: "what answers take tells when one is overdue",
		servers: 2, timeout: 5 * time.Second, faults: []fault{{on: acquire, nth: 8, freeze: true}},
		orders:  []order{take(10000, 0), letGo, take(10000, 0), letGo, take(10000, 0), letGo, take(10000, 0), letGo, take(10000, 0), letGo, take(10000, 0), letGo, take(10000, 0), letGo, take(10000, 10000), letGo},
		trace:   "(acquire@1=201 release@1=204 ){7}acquire@1=gone acquire@2=201 release@2=204",
		results: "(acquired \\d; released(; )?){8}", also: []rule{{"the next server is asked soon", pauseBefore("acquire@2=201", 2500*time.Millisecond)}},
	},
	{
		name: "a grant is over when it comes, and there is time", why: "a process that was paused still wants the lock",
		faults: []fault{{on: acquire, nth: 1, after: 200 * time.Millisecond, validity: 100 * time.Millisecond}},
		orders: []order{take(10000, 3000), letGo}, trace: "acquire@1=201 release@1=(204|404) acquire@1=201 release@1=204", results: "acquired 2; released",
	},
	{
		name: "no server answers a release", why: "the work is done; its caller is not to wait for the lock service",
		servers: 2, timeout: 5 * time.Second, faults: []fault{{on: release, freeze: true}},
		orders: []order{work(5000, 100)}, trace: "acquire@1=201 release@1=gone( release@2=gone)?( release@[12]=gone)*", results: "worked", leaves: true,
		within: 1500 * time.Millisecond,
	},

	// Refusals of an acquire.
	{
		name: "409, without a wait", why: "the caller asked for one try",
		held: time.Minute, orders: []order{take(10000, 0)}, trace: "acquire@1=409", results: "held", within: 2 * time.Second,
	},
	{
		name: "409 at the end of the wait", why: "the caller's time is over",
		held: time.Minute, orders: []order{take(10000, 500)}, trace: "acquire@1=409( acquire@1=409)?", results: "held", within: 2 * time.Second,
	},
	{
		name: "a wait", why: "waited_ms belongs to the client: the lease is not nearly over",
		held: 4500 * time.Millisecond, orders: []order{take(6000, 10000), letGo},
		trace: "acquire@1=201 release@1=204", results: "acquired 1; released", also: []rule{{"a whole validity is left after a wait", wholeValidity}},
	},
	{
		name: "a wait of several polls", why: "a service or a proxy ends long requests; the same key keeps the place",
		held: 1500 * time.Millisecond, longestPoll: 300 * time.Millisecond, orders: []order{take(10000, 5000), letGo},
		trace: "acquire@1=409( acquire@1=409){1,5} acquire@1=201 release@1=204", results: "acquired 1; released",
	},
	{
		name: "a wait that is longer than proxies allow", why: "a proxy would break it off, and take the server out",
		held: 600 * time.Millisecond, orders: []order{take(10000, 700000), letGo},
		trace: "acquire@1=201 release@1=204", results: "acquired 1; released",
	},
	{
		name: "the server stops during a wait", why: "503 server-stopping: the next server keeps the place",
		servers: 2, held: 600 * time.Millisecond, faults: []fault{{on: acquire, nth: 1, before: 200 * time.Millisecond, status: 503, kind: "server-stopping"}},
		orders: []order{take(10000, 5000), letGo}, trace: "acquire@1=503 acquire@2=201 release@2=204", results: "acquired 1; released",
	},
	{
		name: "validity is over when the grant comes", why: "work would begin under a lease that has ended",
		faults: []fault{{on: acquire, after: 200 * time.Millisecond, validity: 100 * time.Millisecond}},
		orders: []order{take(10000, 0), settle}, results: "unavailable; paused",
		trace:  "acquire@1=201( release@1=(204|404))( acquire@1=201 release@1=(204|404))*",
		ifLate: "acquire@1=201((( acquire@1=201)? release@1=(204|404))+(( acquire@1=201)+ cancel@1=204)?|( acquire@1=201)* cancel@1=204)",
	},
	{
		name: "a redirect of an acquire", why: "a lease id or a credential would go to another host",
		faults: []fault{{on: acquire, status: http.StatusTemporaryRedirect, redirects: true}},
		orders: []order{take(10000, 5000)}, trace: "acquire@1=307", results: "refused", within: 2 * time.Second,
	},
	{
		name: "a redirect of a release", why: "a 302 makes a GET of it, which ends no lease and succeeds",
		faults: []fault{{on: release, status: http.StatusFound, redirects: true}},
		orders: pair, trace: "acquire@1=201( release@1=302)+", results: "acquired 1; refused", leaves: true,
	},
	{
		name: "412", why: "a type that is not known is treated by its status: stop",
		faults: []fault{{on: acquire, status: http.StatusPreconditionFailed, kind: "of-a-later-version"}},
		orders: []order{take(10000, 5000)}, trace: "acquire@1=412", results: "refused", within: 2 * time.Second,
	},
	{
		name: "422", why: "the same request is refused again",
		faults: []fault{{on: acquire, status: http.StatusUnprocessableEntity, kind: "idempotency-mismatch"}},
		orders: []order{take(10000, 5000)}, trace: "acquire@1=422", results: "refused", within: 2 * time.Second,
	},
	{
		name: "401", why: "the credential has to be renewed",
		faults: []fault{{on: acquire, status: http.StatusUnauthorized, kind: "unauthorized"}},
		orders: []order{take(10000, 5000)}, trace: "acquire@1=401", results: "denied", within: 2 * time.Second,
	},
	{
		name: "429 with Retry-After", why: "an early repeat counts against the limit",
		faults: []fault{{on: acquire, nth: 1, status: http.StatusTooManyRequests, kind: "request-limit", retryAfter: "1"}},
		orders: []order{take(10000, 3000), letGo}, trace: "acquire@1=429 acquire@1=201 release@1=204", results: "acquired 1; released",
		also: []rule{{"Retry-After is obeyed", pauseOf(time.Second)}},
	},
	{
		name: "503 with Retry-After", why: "no quorum now; it may come back within the patience",
		faults: []fault{{on: acquire, nth: 1, status: http.StatusServiceUnavailable, kind: "no-quorum", retryAfter: "1"}},
		orders: withoutWait, trace: "acquire@1=503 acquire@1=201 release@1=204", results: "acquired 1; released",
		also: []rule{{"there is a pause before the next try", pauseOf(20 * time.Millisecond)}},
	},
	{
		name: "503 from one of two", why: "the other may have a quorum",
		servers: 2, faults: []fault{{on: acquire, server: 1, status: http.StatusServiceUnavailable, kind: "no-quorum", effect: true}},
		orders: pair, trace: "acquire@1=503 acquire@2=200 release@2=204", results: "acquired 2; released", within: 2 * time.Second,
	},
	{
		name: "a proxy's 502", why: "it is no answer: the next server",
		servers: 2, faults: []fault{{on: acquire, server: 1, status: http.StatusBadGateway, effect: true}},
		orders: pair, trace: "acquire@1=502 acquire@2=200 release@2=204", results: "acquired 2; released", within: 2 * time.Second,
	},
	{
		name: "no quorum for longer than the patience", why: "a caller is to hear of it, and the tries become rare",
		faults: []fault{{on: acquire, status: http.StatusServiceUnavailable, kind: "no-quorum"}}, patience: 1500 * time.Millisecond,
		orders: []order{take(10000, 0), settle}, results: "unavailable; paused", within: 3700 * time.Millisecond,
		trace: "acquire@1=503( acquire@1=503){2,16} cancel@1=204",
	},
	{
		name: "a caller gives up", why: "what its request was granted would block the resource for the TTL",
		held: 4 * time.Second, orders: []order{{Do: "acquire", Resource: resource, TTLMS: 5000, WaitMS: 30000, CancelAfter: 1000}, settle},
		trace: "acquire@1=gone cancel@1=204", results: "cancelled; paused", within: 2500 * time.Millisecond,
	},
	{
		name: "a caller gives up between two polls", why: "the place that the last one kept would be given the resource, for nobody",
		held: 4 * time.Second, longestPoll: 200 * time.Millisecond,
		faults: []fault{{on: acquire, nth: 2, status: http.StatusTooManyRequests, kind: "request-limit", retryAfter: "2"}},
		orders: []order{{Do: "acquire", Resource: resource, TTLMS: 5000, WaitMS: 30000, CancelAfter: 1600}, settle},
		trace:  "acquire@1=409 acquire@1=429 cancel@1=204", results: "cancelled; paused", within: 2700 * time.Millisecond,
	},
	{
		name: "a client gives up between two polls", why: "as if its caller did",
		held: 2 * time.Second, longestPoll: 200 * time.Millisecond,
		faults: []fault{{on: acquire, nth: 2, status: http.StatusTooManyRequests, kind: "request-limit", retryAfter: "60"}},
		orders: []order{take(5000, 30000), settle},
		trace:  "acquire@1=409 acquire@1=429 cancel@1=204", results: "unavailable; paused", within: 2700 * time.Millisecond,
	},
	{
		name: "a caller gives up as the grant comes", why: "a cancel under the key ends it",
		faults: []fault{{on: acquire, nth: 1, after: 5 * time.Second}, {on: cancel, nth: 1, cut: true, effect: true}},
		orders: []order{{Do: "acquire", Resource: resource, TTLMS: 5000, WaitMS: 5000, CancelAfter: 1000}, settle},
		trace:  "acquire@1=gone cancel@1=cut cancel@1=204", results: "cancelled; paused", within: 2700 * time.Millisecond,
	},
	{
		name: "no try is answered, and one was granted", why: "it would block the resource for the TTL: it is found under the key, and ended",
		faults: []fault{{on: acquire, nth: 1, after: 3 * time.Second}, {on: acquire, status: 1, cut: true}},
		orders: []order{take(5000, 0), settle},
		trace:  "acquire@1=gone( acquire@1=cut)+ cancel@1=204", results: "unavailable; paused", within: 2500 * time.Millisecond,
		ifLate: "acquire@1=gone cancel@1=204",
	},
	{
		name: "a 503 that was a grant is the last answer", why: "as if there was none",
		faults: []fault{{on: acquire, nth: 1, status: http.StatusServiceUnavailable, kind: "no-quorum", effect: true}, {on: acquire, status: http.StatusServiceUnavailable, kind: "no-quorum"}},
		orders: []order{take(5000, 0), settle},
		trace:  "acquire@1=503( acquire@1=503)+ cancel@1=204", results: "unavailable; paused", within: 2500 * time.Millisecond,
		ifLate: "acquire@1=503 cancel@1=204",
	},

	// Keep-alive.
	{
		name: "work that is longer than the TTL", why: "the lease is extended at a third, and by its own TTL",
		orders: []order{work(3000, 3750)}, trace: "acquire@1=201( extend@1=200){2,4} release@1=204", results: "worked",
	},
	{
		name: "a TTL that the service chose", why: "an extend names the TTL of the answer, or the lease shrinks",
		orders: []order{work(0, 1800)}, trace: "acquire@1=201( extend@1=200){1,2} release@1=204", results: "worked",
	},
	{
		name: "the answer to an extend is lost", why: "an outage of a moment is outlived",
		faults: []fault{{on: extend, nth: 1, effect: true, cut: true}},
		orders: []order{work(3000, 3750)}, trace: "acquire@1=201 extend@1=cut( extend@1=200){2,4} release@1=204", results: "worked",
	},
	{
		name: "an extend meets a frozen server among two", why: "there is time for every server twice",
		servers: 2, timeout: 5 * time.Second, faults: []fault{{on: extend, server: 1, freeze: true}},
		orders: []order{work(3000, 3600)}, trace: "acquire@1=201 extend@1=gone( extend@2=200){2,4} release@2=204", results: "worked",
	},
	{
		name: "an extend is answered late", why: "validity counts from when the extend was sent",
		timeout: 3 * time.Second, faults: []fault{{on: extend, nth: 1, after: 500 * time.Millisecond}, {on: extend, from: 2, status: 1, cut: true}},
		orders: []order{work(3000, 10000)}, trace: "acquire@1=201 extend@1=200( extend@1=cut)+( release@1=(204|404))", results: "lost",
		notified: span{2 * time.Second, 4100 * time.Millisecond},
	},
	{
		name: "no extend is answered", why: "the work ends before the lease does",
		faults: []fault{{on: extend, status: 1, cut: true}},
		orders: []order{work(3000, 10000)}, trace: "acquire@1=201( extend@1=cut){2,}( release@1=(204|404))", results: "lost",
		notified: span{1400 * time.Millisecond, 3 * time.Second},
	},
	{
		name: "no quorum for any extend", why: "a 503 leaves the old validity",
		faults: []fault{{on: extend, status: http.StatusServiceUnavailable, kind: "no-quorum"}},
		orders: []order{work(3000, 10000)}, trace: "acquire@1=201( extend@1=503){2,}( release@1=(204|404))", results: "lost",
		notified: span{1400 * time.Millisecond, 3 * time.Second},
	},
	{
		name: "the lease ends early", why: "another may hold the resource: work stops at once",
		faults: []fault{{on: extend, nth: 2, ends: true}},
		orders: []order{work(3000, 10000)}, trace: "acquire@1=201 extend@1=200 extend@1=404( release@1=404)?", results: "lost",
		notified: span{1600 * time.Millisecond, 2600 * time.Millisecond},
	},
	{
		name: "an extend is refused", why: "409: the lease lasts as long as before and no longer",
		faults: []fault{{on: extend, status: http.StatusConflict, kind: "max-hold-reached"}},
		orders: []order{work(3000, 10000)}, trace: "acquire@1=201( extend@1=409)+ release@1=(204|404)", results: "lost",
		notified: span{2500 * time.Millisecond, 3 * time.Second},
	},
	{
		name: "the longest hold is reached", why: "extending a lease that cannot last longer is useless, and it must end in time",
		maxHold: 5500 * time.Millisecond,
		orders:  []order{work(3000, 12000)}, trace: "acquire@1=201( extend@1=200){2,4} release@1=204", results: "lost",
		ifLate:   "acquire@1=201( extend@1=200){2,4} release@1=404",
		notified: span{4250 * time.Millisecond, 5500 * time.Millisecond},
	},
	{
		name: "work ends while an extend is under way", why: "an extend after the release could revive the lease: the keep-alive ends first",
		faults: []fault{{on: extend, nth: 1, after: 1400 * time.Millisecond}}, timeout: 3 * time.Second,
		orders: []order{work(9000, 3700)}, trace: "acquire@1=201 extend@1=(200|gone) release@1=204", results: "worked",
	},
	{
		name: "a clock that moves", why: "only the monotonic clock counts",
		faults: []fault{{on: acquire, clock: time.Hour}, {on: extend, nth: 1, clock: -3 * time.Hour}, {on: extend, nth: 2, clock: 5 * time.Hour}},
		orders: []order{work(3000, 3750), take(10000, 5000), letGo},
		trace:  "acquire@1=201( extend@1=200){2,4} release@1=204 acquire@1=201 release@1=204", results: "worked; acquired 2; released",
	},

	// Releases.
	{
		name: "the answer to a release is lost", why: "404 to the repeat is as good as 204",
		faults: []fault{{on: release, nth: 1, effect: true, cut: true}},
		orders: pair, trace: "acquire@1=201 release@1=cut release@1=404", results: "acquired 1; released",
	},
	{
		name: "a release finds that the lease has ended", why: "the work may have overlapped another's",
		faults: []fault{{on: release, nth: 1, status: http.StatusNotFound, kind: "lease-not-held", effect: true}},
		orders: pair, trace: "acquire@1=201 release@1=404", results: "acquired 1; lost",
	},
	{
		name: "a release in doubt", why: "its key is never used again: that release may end the lease that a retry finds",
		faults: []fault{{on: release, status: http.StatusServiceUnavailable, kind: "no-quorum"}}, patience: 400 * time.Millisecond,
		orders: []order{take(700, 0), letGo, take(10000, 5000), letGo}, leaves: true,
		trace:   "acquire@1=201( release@1=503)+ acquire@1=201( release@1=503)+",
		results: "acquired 1; unavailable; acquired 2; unavailable",
	},
	{
		name: "two in a row", why: "each acquisition has a key of its own",
		orders: slices.Concat(pair, pair), trace: "acquire@1=201 release@1=204 acquire@1=201 release@1=204",
		results: "acquired 1; released; acquired 2; released",
	},

	// The process.
	{
		name: "work takes more of what it holds", why: "it would wait for itself, until its caller gives up",
		orders: []order{{Do: "inside", Resource: resource, TTLMS: 5000, WaitMS: 30000}, take(10000, 5000), letGo},
		trace:  "acquire@1=201 release@1=204 acquire@1=201 release@1=204", results: "refused; acquired 2; released", within: 3 * time.Second,
	},
	{
		name: "work starts a task that takes what it holds", why: "the work waits for the task, and the task for the work: it joins, or is refused",
		orders: []order{{Do: "beside", Resource: resource, TTLMS: 5000, WaitMS: 30000}, take(10000, 5000), letGo},
		trace:  "acquire@1=201 release@1=204 acquire@1=201 release@1=204", results: "(joined|refused); acquired 2; released", within: 3 * time.Second,
	},
	{
		name: "a closed client is used", why: "a program that ends takes nothing more",
		orders: []order{take(10000, 5000), letGo, {Do: "close"}, take(10000, 5000)}, trace: "acquire@1=201 release@1=204", results: "acquired 1; released; closed; refused",
		within: 3 * time.Second,
	},
	{
		name: "a process forks", why: "parent and child on one connection read each other's answers",
		orders: []order{take(10000, 5000), letGo, {Do: "fork", Resource: resource, TTLMS: 2000}, take(10000, 5000), letGo},
		trace:  "acquire@1=201 release@1=204 acquire@1=201 release@1=204 acquire@1=201 release@1=204", results: "acquired 1; released; forked 2; acquired 3; released",
		also: []rule{{"the child has connections of its own", childConnectsItself}},
	},
}
