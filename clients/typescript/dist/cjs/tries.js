"use strict";
/** How a call has gone so far, and how long its next try may take. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.Tries = exports.ABANDON = exports.CLOSE_GRACE = exports.SHORTEST_TRY = exports.HURRY = exports.GRACE = exports.FIRST_PAUSE = void 0;
const clock_js_1 = require("./clock.js");
const errors_js_1 = require("./errors.js");
exports.FIRST_PAUSE = 50; // milliseconds between tries
const MAX_PAUSE = 1000;
const MAX_POLL_PAUSE = 500; // after no response to a poll: its place is kept for two seconds
const SHORT_POLL = 1000; // of the first poll after one that got no response
exports.GRACE = 1000; // after its wait, in which an acquire ends, and a release after work
exports.HURRY = 250; // for which work that was given up waits for its release
const SHORTEST_LAST = 1000; // that the last try has, though patience ends earlier
exports.SHORTEST_TRY = 250;
exports.CLOSE_GRACE = 3000; // after the work, in which close ends
exports.ABANDON = 10000; // to end what no caller waits for any more
const LONGEST_WAIT = 600000; // that a request may ask a server to wait
class Tries {
    number = 0;
    /** Rounds over all servers without an answer for good. */
    silent = 0;
    /** A try without an answer may have taken effect. */
    ambiguous = false;
    /** A poll has kept a place in the queue, unless the call has ended because the resource is held. */
    queued = false;
    /** A try was broken off, if it is still set when the call has ended. */
    underWay = false;
    /** The outcomes of tries that were given up in batches. */
    late = [];
    /** The failure that still lasts. */
    last;
    patience;
    deadline;
    #waitUntil;
    #limit;
    #longestPoll;
    #poll;
    #pause = exports.FIRST_PAUSE;
    #since = Infinity; // when the failures began that still last
    constructor(bounds, patience, poll) {
        this.deadline = bounds.deadline ?? Infinity;
        this.patience = patience;
        this.#waitUntil = bounds.waitUntil;
        this.#limit = bounds.limit ?? Infinity;
        this.#poll = this.#longestPoll = poll;
    }
    /** What is left of the wait in the queue, and how much of it the next request waits. */
    wait(crowded = false) {
        const left = Math.floor(Math.min(Math.max(0, (this.#waitUntil ?? 0) - (0, clock_js_1.now)()), LONGEST_WAIT));
        return { left, kept: Math.min(left, crowded ? SHORT_POLL : this.#poll) };
    }
    /** How long the next try may take beyond its wait, and when its server is probed, if it waits for `kept`.
     * `timeout` is the client's for a try, and `servers` have not been asked in this round: each is to have its time. */
    limit(timeout, servers, kept) {
        const failing = this.failing();
        const last = failing > 0 ? Math.max(this.patience - failing, SHORTEST_LAST) : Infinity;
        const share = (this.deadline - (0, clock_js_1.now)()) / Math.max(servers, this.number ? 1 : 2); // there is time for another try
        const limit = Math.min(timeout, this.#limit, share, last);
        // A short poll is soon over, unless it takes the time of other servers.
        const probed = kept > SHORT_POLL || (kept > 0 && limit + kept > share);
        return { limit, probe: probed ? Math.min(limit, share / 2) : undefined };
    }
    /** For how long the call has failed. */
    failing() {
        return Math.max(0, (0, clock_js_1.now)() - this.#since);
    }
    /** Whether the call is to end, since it has failed for too long. */
    over(pause = 0) {
        return this.failing() + pause > this.patience || (0, clock_js_1.now)() + pause >= this.deadline;
    }
    /** Notes a try that failed. */
    failed(error) {
        if (error.kind === '')
            this.#poll = Math.min(this.#poll, SHORT_POLL);
        this.#since = Math.min(this.#since, (0, clock_js_1.now)());
        this.last = error;
    }
    /** Notes a poll that ended without a grant, and returns the pause before the next one. */
    held() {
        this.queued = true;
        this.#since = Infinity;
        this.last = undefined;
        this.#poll = Math.min(2 * this.#poll, this.#longestPoll);
        return (this.#pause = exports.FIRST_PAUSE);
    }
    /** The pause before the next try: it spreads callers that failed together, and obeys Retry-After of a limit. */
    nextPause(error) {
        if (this.#waitUntil !== undefined && error.kind === '')
            this.#pause = Math.min(this.#pause, MAX_POLL_PAUSE);
        const pause = this.#pause * (0.5 + Math.random());
        this.#pause = Math.min(2 * this.#pause, MAX_PAUSE);
        return error.status === 429 ? Math.max(pause, error.retryAfter) : pause;
    }
    /** Notes a refusal, and says whether it means that an earlier try has done what was asked. */
    done(call, error) {
        if (error.status >= 500)
            this.ambiguous = true;
        if (!this.ambiguous)
            return false;
        if (call.method === 'DELETE')
            return error.kind === 'lease-not-held';
        if (call.breaks === undefined)
            return false;
        return error instanceof errors_js_1.OtherLease ? error.token > call.breaks : error.kind === 'lock-not-held';
    }
}
exports.Tries = Tries;
