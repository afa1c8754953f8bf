"use strict";
/** The work under a lease, which calls in it may join. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.kindOf = exports.Session = exports.waitedFor = exports.heldAround = exports.taken = void 0;
const around_js_1 = require("./around.js");
const clock_js_1 = require("./clock.js");
const live_js_1 = require("./live.js");
const errors_js_1 = require("./errors.js");
const lease_js_1 = require("./lease.js");
const tries_js_1 = require("./tries.js");
/** The session of each signal that was passed to its work. */
const sessions = new WeakMap();
/** The Held of each lease that a call took. */
exports.taken = new WeakMap();
/** The leases held around a call, as its signal and its asynchronous context show. */
function heldAround(signal) {
    const lease = signal && (0, lease_js_1.leaseOf)(signal);
    const known = (signal && sessions.get(signal)) || (lease && exports.taken.get(lease));
    const others = (0, around_js_1.around)();
    return known ? [known, ...others.filter((held) => held !== known)] : others;
}
exports.heldAround = heldAround;
/** The lease around a call for which the call would wait forever; undefined if there is none. A call for resources would wait
 * if one of them is held around it; a call for a slot would wait only if all the slots are. */
function waitedFor(names, { slots }, servers, outer) {
    const wanted = slots === undefined ? names : Array.from({ length: slots }, (_, i) => `${names[0]}#slot${i + 1}`);
    const mine = wanted.map((name) => outer.find((held) => !held.over && overlap(servers, held.servers) && held.lease.parts.some((part) => part.resource === name)));
    return slots === undefined || !mine.includes(undefined) ? mine.find((held) => held) : undefined;
}
exports.waitedFor = waitedFor;
function overlap(a, b) {
    return a.some((each) => b.includes(each));
}
/** A lease that one `do` took and that those nested in it share. */
class Session {
    lease;
    owner;
    servers;
    over = false;
    #inside = 0; // calls of do that have not returned
    signal;
    #kinds;
    /** `kind` is the result of kindOf for the call that took the lease. */
    constructor(lease, owner, servers, kind, scope) {
        this.lease = lease;
        this.owner = owner;
        this.servers = servers;
        this.signal = scope.signal;
        this.#kinds = [kind, kindOf(lease.parts.map((part) => part.resource), {})]; // a call may also name the slot as its resource
        (0, live_js_1.live)(scope, () => lease.told());
    }
    /** Whether a do of this kind, by that client, joins it. */
    joins(kind, owner) {
        return !this.over && this.owner === owner && this.#kinds.includes(kind);
    }
    /** Runs the work of a nested do. If `signal` is not the session's but made from it, the work gets a signal that follows both. */
    async join(work, signal) {
        if (sessions.get(signal) === this)
            return this.run(work, signal);
        const scope = new AbortController();
        (0, live_js_1.live)(scope, () => this.lease.told());
        const unhook = [this.signal, signal].map((each) => (0, clock_js_1.onAbort)(each, (reason) => scope.abort(reason)));
        try {
            return await this.run(work, scope.signal);
        }
        finally {
            unhook.forEach((f) => f());
        }
    }
    /** Runs the work of a do. When the last work of the session has ended, it releases the lease. */
    async run(work, signal) {
        this.#inside++;
        sessions.set(signal, this);
        let outcome;
        try {
            this.lease.check();
            signal.throwIfAborted();
            outcome = { value: await work(this.lease, signal) };
        }
        catch (error) {
            outcome = { error };
        }
        const loss = await this.#leave();
        if ('error' in outcome)
            throw loss && isAbort(outcome.error) ? loss : outcome.error;
        if (loss)
            throw loss;
        return outcome.value;
    }
    /** Resolves to the loss of the lease, if it was lost. */
    async #leave() {
        if (--this.#inside > 0)
            return this.lease.loss();
        this.over = true;
        return this.lease.finish(this.signal.aborted ? tries_js_1.HURRY : tries_js_1.GRACE);
    }
}
exports.Session = Session;
/** Whether an error only says that a signal was aborted. */
function isAbort(error) {
    return error instanceof errors_js_1.LeaseLost || error?.name === 'AbortError';
}
/** A text that is the same for calls which may share a lease: they name the same resources, and all or none ask for a slot. */
function kindOf(names, { slots }) {
    return JSON.stringify([[...names].sort(), slots !== undefined]);
}
exports.kindOf = kindOf;
