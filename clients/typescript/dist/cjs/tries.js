"use strict";
/** How a call has gone so far, and how long its next try may take. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.Tries = exports.ABANDON = exports.CLOSE_GRACE = exports.SHORTEST_TRY = exports.HURRY = exports.GRACE = exports.FIRST_PAUSE = void 0;
const clock_js_1 = require("./clock.js");
const errors_js_1 = require("./errors.js");
exports.FIRST_PAUSE = 50; // milliseconds between tries
const MAX_PAUSE = 1000;
const MAX_POLL_PAUSE = 500; // after a poll without a response: the server keeps its place for two seconds
const SHORT_POLL = 1000; // how long a poll waits after one that got no response, or in a crowded lane
exports.GRACE = 1000; // an acquire ends this long after its wait; a release after work takes this long at most
exports.HURRY = 250; // a release after work that was aborted takes this long at most
const SHORTEST_LAST = 1000; // the last try has this long, even if patience ends earlier
exports.SHORTEST_TRY = 250;
exports.CLOSE_GRACE = 3000; // close ends this long after the work at the latest
exports.ABANDON = 10000; // for requests in the background, which end leases and places in the queue
const LONGEST_WAIT = 600000; // the longest wait that a server accepts in a request
class Tries {
    number = 0;
    /** The number of rounds over all servers in which none gave a final response. */
    silent = 0;
    /** Whether a failed try may have taken effect. */
    ambiguous = false;
    /** Whether a server may keep a place in the queue for this call. A poll without a grant sets it; the last Held clears it. */
    queued = false;
    /** Whether a try is under way. If it is still true when the call has ended, that try was broken off. */
    underWay = false;
    /** The outcomes of tries that were given up in batches. */
    late = [];
    /** The error of the last try that failed; undefined after a poll that got a response. */
    last;
    patience;
    deadline;
    #waitUntil;
    #limit;
    #longestPoll;
    #poll;
    #pause = exports.FIRST_PAUSE;
    #since = Infinity; // when the present run of failures began
    constructor(bounds, patience, poll) {
        this.deadline = bounds.deadline ?? Infinity;
        this.patience = patience;
        this.#waitUntil = bounds.waitUntil;
        this.#limit = bounds.limit ?? Infinity;
        this.#poll = this.#longestPoll = poll;
    }
    /** How many milliseconds are left of the wait in the queue (`left`), and how many of them the next request waits (`kept`). */
    wait(crowded = false) {
        const left = Math.floor(Math.min(Math.max(0, (this.#waitUntil ?? 0) - (0, clock_js_1.now)()), LONGEST_WAIT));
        return { left, kept: Math.min(left, crowded ? SHORT_POLL : this.#poll) };
    }
    /** How many milliseconds the next try may take in addition to its wait of `kept` in the queue, and after how many its server
     * is probed (undefined: never). `timeout` is the longest that the client allows a try. `servers` is the number of servers
     * that have not been asked in this round: each gets its share of the time. */
    limit(timeout, servers, kept) {
        const failing = this.failing();
        const last = failing > 0 ? Math.max(this.patience - failing, SHORTEST_LAST) : Infinity;
        const share = (this.deadline - (0, clock_js_1.now)()) / Math.max(servers, this.number ? 1 : 2); // there is time for another try
        const limit = Math.min(timeout, this.#limit, share, last);
        // A short poll is soon over, unless it takes the time of other servers.
        const probed = kept > SHORT_POLL || (kept > 0 && limit + kept > share);
        return { limit, probe: probed ? Math.min(limit, share / 2) : undefined };
    }
    /** For how many milliseconds the call has failed. */
    failing() {
        return Math.max(0, (0, clock_js_1.now)() - this.#since);
    }
    /** Whether the call has to end, because after the pause it would have failed for too long. */
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
    /** The milliseconds before the next try. A random factor spreads the callers that failed together, and the pause is at least
     * the Retry-After of a 429. */
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
