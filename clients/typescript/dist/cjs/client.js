"use strict";
Object.defineProperty(exports, "__esModule", { value: true });
exports.Client = void 0;
const calls_js_1 = require("./calls.js");
const clock_js_1 = require("./clock.js");
const around_js_1 = require("./around.js");
const batch_js_1 = require("./batch.js");
const errors_js_1 = require("./errors.js");
const events_js_1 = require("./events.js");
const key_js_1 = require("./key.js");
const lease_js_1 = require("./lease.js");
const options_js_1 = require("./options.js");
const requests_js_1 = require("./requests.js");
const server_js_1 = require("./server.js");
const session_js_1 = require("./session.js");
const state_js_1 = require("./state.js");
const tries_js_1 = require("./tries.js");
const watched_js_1 = require("./watched.js");
/** Talks to one lock service through any of its servers. */
class Client {
    #calls;
    #holder;
    #closed;
    #scopes = new Set(); // of waits and work, which close ends
    #watches = new Set(); // whose streams close ends
    /** `servers` are URLs: several in an array, or with commas between them. When one does not
     * answer, the next is asked. */
    constructor(servers, options = {}) {
        (0, options_js_1.checkClientOptions)(options);
        const { bearer, holder = '', timeout = 5000, patience = 15000, poll = 45000, batchAfter = batch_js_1.BATCH_AFTER, onRetry, fetch = globalThis.fetch.bind(globalThis) } = options;
        this.#calls = new calls_js_1.Calls({ servers, bearer, timeout, patience, poll, batchAfter, onRetry, fetch });
        this.#holder = holder;
    }
    /** Runs work under a lease, keeps it alive meanwhile, and releases it. With several resources it takes all or none.
     *
     * The signal that work gets is aborted with LeaseLost when the lease is lost, a margin before its
     * validity ends; with the reason of `options.signal` when that is aborted; with Closed by `close`.
     * `do` waits for the work to end in any case, and then releases the lease. It waits for that a second at most, and a
     * quarter of a second if the signal was aborted; the release then continues in the background.
     *
     * It nests: in the work, with the same client, the same resources, and as `options.signal` the one that work got, or one
     * that is made of it (`AbortSignal.any`), it joins the lease, and its other options are ignored. What would wait for the
     * work around it rejects at once, with Refused of the kind "would-wait-for-itself": without the signal, for some of the
     * resources, or through another client. (A browser knows only what the signal tells.) A slot of a resource and the resource itself are not the same: in the
     * work of a slot, `slots` of the same resource and the slot by its name join it, and the resource itself is another lock.
     *
     * It resolves to what work does. It rejects with LeaseLost if the lease was lost meanwhile, unless work
     * rejected with an error of its own; with Held, Unavailable, Denied or Refused if there was no lease. */
    async do(resource, work, options = {}) {
        const names = (0, options_js_1.namesOf)(resource);
        (0, options_js_1.checkOptions)(options, names);
        const kind = (0, session_js_1.kindOf)(names, options);
        const outer = (0, session_js_1.heldAround)(options.signal);
        const joined = options.signal && outer.find((held) => held instanceof session_js_1.Session && held.joins(kind, this));
        if (joined)
            return joined.join(work, options.signal);
        return this.#scoped(options.signal, async (scope) => {
            const lease = await this.#acquire(names, options, scope.signal, outer);
            lease.keepAlive({
                ...options,
                onLost: (loss) => {
                    scope.abort(loss);
                    (0, clock_js_1.tell)(options.onLost, loss);
                },
            });
            this.#calls.kept.delete(lease); // it is released when the work has ended
            const session = new session_js_1.Session(lease, this, this.#urls(), kind, scope);
            session_js_1.taken.set(lease, session);
            return (0, around_js_1.inside)(session, () => session.run(work, scope.signal));
        });
    }
    /** Stands for the leadership of all that call it for the same resource: who holds its lease
     * leads. It calls `lead`, as `do` calls work, while this process leads. To resign, return
     * from `lead`: `elect` resolves to what it returned, or rejects with what it rejected with, and the
     * next candidate leads at once.
     *
     * When the lease is lost, the signal that `lead` gets is aborted, and `lead` must end. Then, and
     * after an outage, `elect` stands again, and drops what `lead` returned or rejected with. */
    async elect(resource, lead, options = {}) {
        for (;;) {
            let led = false;
            let lost = false;
            const work = async (lease, signal) => {
                led = true;
                try {
                    return await lead(lease, signal);
                }
                finally {
                    lost = lease.lost;
                }
            };
            try {
                return await this.do(resource, work, options);
            }
            catch (error) {
                const unled = !led && (error instanceof errors_js_1.Unavailable || error instanceof errors_js_1.LeaseLost);
                if (!lost && !unled)
                    throw error;
            }
            await (0, clock_js_1.sleep)(tries_js_1.FIRST_PAUSE * (1 + Math.random()), options.signal);
        }
    }
    /** Tells who holds a resource, as `inspect` does: now, and after each change; undefined while it is
     * unknown, because no server responds or there is no quorum. A change is told as soon as the service's events show it,
     * or after 10 s; after 1 s while no server sends events. Tokens never fall; a holder that
     * comes and goes between two looks is left out. It ends with the loop over it, and rejects with
     * the error of any other refusal, and with Closed. */
    async *watch(resource, options = {}) {
        (0, options_js_1.refuseUnknown)(options, ['signal']);
        const { signal } = options;
        const watched = new watched_js_1.Watched();
        const events = new events_js_1.Events(this.#calls, resource);
        this.#watches.add(events);
        try {
            for (;;) {
                const lock = await this.#scoped(signal, (scope) => this.#look(resource, scope.signal));
                if (watched.isNews(lock))
                    yield lock;
                await this.#scoped(signal, (scope) => events.wait(scope.signal));
            }
        }
        finally {
            events.close();
            this.#watches.delete(events);
        }
    }
    async #look(resource, signal) {
        try {
            return await this.#inspect(resource, signal);
        }
        catch (error) {
            if (error instanceof errors_js_1.Unavailable)
                return undefined;
            throw error;
        }
    }
    /** Takes a lease that is kept alive until it is released, for `await using`:
     * at the end of the block it is released. `lease.signal` and `lease.check()` show its loss.
     *
     * Pass `lease.signal` on as `options.signal` to what runs under the lease: a call that would wait for it then rejects at once, with
     * Refused of the kind "would-wait-for-itself". Without it a lease of `lock` is not known to belong to the caller, and a second one waits
     * for its release, as for anybody's: give it a `wait`, or use `do`, whose work is known. */
    async lock(resource, options = {}) {
        const lease = await this.acquire(resource, options);
        if (this.#closed) {
            await lease.finish();
            throw this.#closed;
        }
        lease.keepAlive(options);
        return lease;
    }
    /** Takes a lease that is not kept alive: the caller extends and releases it. */
    async acquire(resource, options = {}) {
        const names = (0, options_js_1.namesOf)(resource);
        (0, options_js_1.checkOptions)(options, names);
        const outer = (0, session_js_1.heldAround)(options.signal);
        const lease = await this.#scoped(options.signal, (scope) => this.#acquire(names, options, scope.signal, outer));
        session_js_1.taken.set(lease, { owner: this, servers: this.#urls(), lease, get over() { return lease.lost; } });
        return lease;
    }
    /** Looks up a live lease by its lease id, for a process that works under a lease which another
     * one acquired. Rejects with LeaseLost if it has ended. */
    async lease(id) {
        const headers = { 'Fencelock-Lease': id };
        return new lease_js_1.Lease(this.#calls, await this.#calls.send({ operation: 'look up', resource: '', method: 'GET', path: '/leases/current', headers }));
    }
    /** Whether a resource is held, by which holder, for how much longer, and its queue. */
    inspect(resource) {
        return this.#inspect(resource);
    }
    async #inspect(resource, signal) {
        const { body } = await this.#calls.send({ ...(0, requests_js_1.ofResource)('inspect', resource), signal });
        return (0, state_js_1.lockState)(body);
    }
    /** Ends the lease of a resource that has the fencing token, which `inspect` shows, and never a
     * later one. That is for administrators; the holder learns it from its next request. Rejects with
     * Refused of the kind "lock-not-held" if the resource is free, and with OtherLease if another
     * lease holds it. */
    async breakLock(resource, token) {
        await this.#calls.send({ ...(0, requests_js_1.ofBreaks)(resource, { fencing_token: token }), breaks: token });
    }
    /** Ends whatever lease holds a resource. After Unavailable the lease may have ended, and another
     * `breakAny` may end the next one: `inspect` first. */
    async breakAny(resource) {
        await this.#calls.send({ ...(0, requests_js_1.ofBreaks)(resource, { any: true }), once: true });
    }
    /** The held resources that begin with a prefix, in no particular order. A lock that is taken
     * or released meanwhile may be missed or come twice. */
    list(prefix = '') {
        return this.#pages('list', '/locks', { prefix }, 'locks', state_js_1.lockState);
    }
    /** Reads a guarded record, and claims nothing: before a write use `claimRecord`. A record that was never
     * written has version 0. */
    async readRecord(resource) {
        try {
            return (0, state_js_1.guardedRecord)((await this.#calls.send((0, requests_js_1.ofRecord)('read', resource, 'GET'))).body);
        }
        catch (error) {
            if (errors_js_1.FencelockError.is(error) && error.kind === 'record-not-found')
                return (0, state_js_1.guardedRecord)({ resource });
            throw error;
        }
    }
    /** Claims a guarded record for a lease, and reads it: from then on no smaller token writes it.
     * Rejects with StaleToken. `lease` is of one resource; of several, pass one of its parts. */
    async claimRecord(lease) {
        return (0, state_js_1.guardedRecord)((await this.#calls.send((0, requests_js_1.ofPart)('claim', lease, 'POST'))).body);
    }
    /** Writes a JSON value under the token of a lease. Rejects with StaleToken, and nothing is written. It is not sent again
     * once a server may have done it: after Unavailable it may be written, now or later. */
    async writeRecord(lease, value) {
        if (JSON.stringify(value) === undefined)
            throw new TypeError(`a record's value must be JSON, not ${typeof value}`);
        return (0, state_js_1.guardedRecord)((await this.#calls.send({ ...(0, requests_js_1.ofPart)('write', lease, 'PUT'), body: () => value, once: true })).body);
    }
    /** Deletes the value of a record under the token of a lease, as `writeRecord` writes it: its history and its highest token stay. */
    async deleteRecord(lease) {
        return (0, state_js_1.guardedRecord)((await this.#calls.send({ ...(0, requests_js_1.ofPart)('delete', lease, 'DELETE'), once: true })).body);
    }
    /** The guarded records whose resources begin with a prefix, in the order of their bytes and without their values. */
    records(prefix = '') {
        return this.#pages('records', '/guarded', { prefix }, 'records', state_js_1.guardedRecord);
    }
    /** The newest hundred writes and claims of a record, refused ones too, the newest first. */
    history(resource) {
        return this.#pages('history', '/history', { resource }, 'attempts', state_js_1.attempt);
    }
    /** Ends a client: waits for a lease reject with Closed, the signals of work under `do` are aborted
     * with it, and `close` waits until the work has ended and released its leases, until those of `lock` are released, and until
     * what requests that were given up may have been granted is released: for three seconds at most after the work has ended, so that a program ends
     * though no server responds. TTLs end what is left. Every later call rejects with Closed. */
    async close() {
        this.#closed ??= new errors_js_1.Closed('this client is closed');
        for (const scope of this.#scopes)
            scope.abort(this.#closed);
        for (const events of this.#watches)
            events.close();
        for (const lease of [...this.#calls.kept])
            this.#calls.inBackground(() => lease.finish());
        await this.#calls.idle(tries_js_1.CLOSE_GRACE);
        this.#calls.closed = this.#closed;
    }
    #urls() {
        return this.#calls.servers.map((server) => server.url);
    }
    /** Refuses what would wait for the work around it. The service says who holds what is not waited for. */
    #refuseToWait(names, options, outer) {
        if (options.wait === 0)
            return;
        const held = (0, session_js_1.waitedFor)(names, options, this.#urls(), outer);
        if (held)
            throw (0, errors_js_1.waitsForItself)(names, held.lease.parts.map((part) => part.resource), held instanceof session_js_1.Session);
    }
    /** Acquires within a second of the wait, whatever the servers do. */
    async #acquire(names, options, signal, outer) {
        this.#refuseToWait(names, options, outer);
        const waitUntil = (0, clock_js_1.now)() + Math.max(options.wait ?? Infinity, 0);
        for (;;) {
            const lease = await this.#granted(names, options, waitUntil, signal);
            if (lease.validity > 0)
                return lease;
            // This process was paused, or the answer was late: what is left of the wait is another's turn.
            await lease.finish();
            if ((0, clock_js_1.now)() >= waitUntil)
                throw (0, errors_js_1.unavailable)(`acquire ${lease.resource}`, lease.resource, 'the lease expired before the response arrived; a longer ttl may help');
        }
    }
    async #granted(names, options, waitUntil, signal) {
        const call = await this.#acquisition(names, options);
        const { patience } = options;
        const tries = this.#calls.tries({ waitUntil, deadline: Math.max(waitUntil, (0, clock_js_1.now)() + (patience ?? 0)) + tries_js_1.GRACE }, patience);
        try {
            const answer = await this.#calls.send({ ...call, signal }, tries);
            for (const late of tries.late)
                this.#calls.inBackground((signal) => this.#endLate(late, call, signal, answer.body));
            return new lease_js_1.Lease(this.#calls, answer);
        }
        catch (error) {
            for (const late of tries.late)
                this.#calls.inBackground((stop) => this.#endLate(late, call, stop));
            if (tries.ambiguous || tries.underWay || tries.queued)
                this.#calls.inBackground((stop) => this.#abandon(call, stop));
            const timedOut = tries.number > 0 && signal.aborted && error === signal.reason && error?.name === 'TimeoutError';
            throw timedOut ? await this.#ended(names, options, tries, error) : error;
        }
    }
    /** What a wait was for that a timeout has ended: a resource that is held, or a server that answers. A look tells, for a second at most. */
    async #ended(names, { slots }, tries, timeout) {
        const what = `acquire ${(0, errors_js_1.shown)(names.join(', '))}`;
        const resource = names.join(', ');
        if (tries.last)
            return Object.assign((0, errors_js_1.unavailable)(what, resource, `the time is over: ${tries.last.message}`), { kind: tries.last.kind, status: tries.last.status, url: tries.last.url, cause: timeout });
        const look = async (name) => (0, state_js_1.lockState)((await this.#calls.send({ ...(0, requests_js_1.ofResource)('inspect', name), deadline: (0, clock_js_1.now)() + tries_js_1.GRACE, once: true, quiet: true })).body);
        const error = (0, errors_js_1.about)(new errors_js_1.Held(`${what}: it is held, and the time is over`), resource);
        error.kind = 'wait-timeout';
        try {
            const seen = await Promise.all(names.map((name) => look(slots === undefined ? name : `${name}#slot1`)));
            const lock = seen.find((each) => each.held);
            if (lock)
                Object.assign(error, { resource: lock.resource, holder: lock.holder, token: lock.token, remaining: lock.remaining });
        }
        catch (failure) {
            if (failure instanceof errors_js_1.Unavailable)
                return Object.assign((0, errors_js_1.unavailable)(what, resource, `no response in time: ${failure.message}`), { cause: timeout });
        }
        return Object.assign(error, { cause: timeout });
    }
    /** Does something that a signal and close end, and that close waits for. */
    async #scoped(signal, f) {
        if (this.#closed)
            throw this.#closed;
        const scope = new AbortController();
        const unhook = (0, clock_js_1.onAbort)(signal, (reason) => scope.abort(reason));
        this.#scopes.add(scope);
        try {
            return await this.#calls.counted(() => f(scope));
        }
        finally {
            unhook();
            this.#scopes.delete(scope);
        }
    }
    /** An acquire: all its tries have one key, on every server. */
    async #acquisition(names, options) {
        const { ttl, minHold, maxHold, slots, holder = this.#holder, metadata } = options;
        const milliseconds = (n) => (n === undefined ? undefined : Math.round(n));
        const body = {
            ...(names.length === 1 ? { resource: names[0] } : { resources: names }),
            ttl_ms: milliseconds(ttl),
            min_hold_ms: milliseconds(minHold),
            max_hold_ms: milliseconds(maxHold),
            slots,
            holder: holder || undefined,
            metadata,
        };
        return {
            operation: 'acquire',
            resource: names.join(', '),
            method: 'POST',
            path: '/locks',
            headers: { 'Idempotency-Key': await (0, key_js_1.randomKey)() },
            body: (wait) => (wait ? { ...body, wait_ms: wait } : body),
        };
    }
    /** Ends all that a request that its caller gave up may have: its lease, and its place in the queue. */
    async #abandon(call, signal) {
        await this.#calls.send({ ...call, operation: 'cancel', path: '/cancel', deadline: (0, clock_js_1.now)() + tries_js_1.ABANDON, quiet: true, signal });
    }
    /** Ends what a try was granted in a batch after its call had given it up, but not the lease that another try found under the
     * same key. */
    async #endLate(late, call, signal, got) {
        let granted;
        try {
            const reply = await late;
            granted = reply && reply.status < 300 ? (0, server_js_1.parse)(reply.text) : undefined;
        }
        catch {
            if (!got)
                await this.#abandon(call, signal);
        }
        if (!granted || (got && tokensOf(granted) === tokensOf(got)))
            return;
        const headers = { 'Fencelock-Lease': String(granted['lease_id']) };
        await this.#calls.send({ operation: 'release', resource: call.resource, method: 'DELETE', path: '/leases/current', headers, deadline: (0, clock_js_1.now)() + tries_js_1.ABANDON, quiet: true, signal });
    }
    async *#pages(operation, path, query, member, read) {
        const resource = Object.values(query).join();
        (0, requests_js_1.encoded)(resource);
        const search = new URLSearchParams({ ...query, limit: '1000' });
        for (;;) {
            const { body } = await this.#calls.send({ operation, resource, method: 'GET', path: `${path}?${search}` });
            for (const each of body[member])
                yield read(each);
            if (!body['next_cursor'])
                return;
            search.set('cursor', String(body['next_cursor']));
        }
    }
}
exports.Client = Client;
(0, lease_js_1.disposable)(Client, (client) => client.close());
/** What distinguishes one grant from another under the same key. */
function tokensOf(lease) {
    const parts = lease['resources'] ?? [lease];
    return parts.map((each) => each['fencing_token']).join();
}
