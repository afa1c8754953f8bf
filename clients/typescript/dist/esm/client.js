import { Calls } from './calls.js';
import { now, onAbort, sleep } from './clock.js';
import { around, inside } from './around.js';
import { BATCH_AFTER } from './batch.js';
import { Closed, FencelockError, LeaseLost, shown, Unavailable, unavailable, waitsForItself } from './errors.js';
import { Events } from './events.js';
import { randomKey } from './key.js';
import { disposable, Lease, leaseOf } from './lease.js';
import { parse } from './server.js';
import { attempt, guardedRecord, lockState } from './state.js';
import { ABANDON, FIRST_PAUSE, GRACE } from './tries.js';
import { Watched } from './watched.js';
/** Talks to one lock service through any of its servers. */
export class Client {
    #calls;
    #holder;
    #closed;
    #scopes = new Set(); // of waits and work, which close ends
    #watches = new Set(); // whose streams close ends
    /** `servers` are URLs: several in an array, or with commas between them. When one does not
     * answer, the next is asked. */
    constructor(servers, options = {}) {
        checkClientOptions(options);
        const { bearer, holder = '', timeout = 5000, patience = 15000, poll = 45000, batchAfter = BATCH_AFTER, onRetry, fetch = globalThis.fetch.bind(globalThis) } = options;
        this.#calls = new Calls({ servers, bearer, timeout, patience, poll, batchAfter, onRetry, fetch });
        this.#holder = holder;
    }
    /** Runs work under a lease, keeps it alive meanwhile, and releases it. With several resources it takes all or none.
     *
     * The signal that work gets is aborted with LeaseLost when the lease is lost, a margin before its
     * validity ends; with the reason of `options.signal` when that is aborted; with Closed by `close`.
     * `do` waits for the work to end in any case, and then releases the lease.
     *
     * It nests: in the work, with the same client, the same resources, and as `options.signal` the one that work got, or one
     * that is made of it (`AbortSignal.any`), it joins the lease, and its other options are ignored. What would wait for the
     * work around it rejects at once, with Refused of the kind "would-wait-for-itself": without the signal, for some of the
     * resources, or through another client. (A browser knows only what the signal tells.) A slot of a resource and the resource itself are not the same.
     *
     * It resolves to what work does. It rejects with LeaseLost if the lease was lost meanwhile, unless work
     * rejected with an error of its own; with Held, Unavailable, Denied or Refused if there was no lease. */
    async do(resource, work, options = {}) {
        const names = namesOf(resource);
        const kind = kindOf(names, options);
        checkOptions(options);
        const outer = heldAround(options.signal);
        const joined = options.signal && outer.find((held) => held.owner === this && held.kind === kind && !held.over);
        if (joined instanceof Session)
            return joined.join(work, options.signal);
        return this.#scoped(options.signal, async (scope) => {
            const lease = await this.#acquire(names, options, scope.signal, outer);
            lease.keepAlive({ ...options, onLost: (loss) => scope.abort(loss) });
            this.#calls.kept.delete(lease); // it is released when the work has ended
            const session = new Session(lease, this.#asks(names, options), scope.signal);
            taken.set(lease, session);
            return inside(session, () => session.run(work, scope.signal));
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
                const unled = !led && (error instanceof Unavailable || error instanceof LeaseLost);
                if (!lost && !unled)
                    throw error;
            }
            await sleep(FIRST_PAUSE * (1 + Math.random()), options.signal);
        }
    }
    /** Tells who holds a resource, as `inspect` does: now, and after each change; undefined while it is
     * unknown, because no server responds or there is no quorum. A change is told as soon as the service's events show it,
     * or after 10 s; after 1 s while no server sends events. Tokens never fall; a holder that
     * comes and goes between two looks is left out. It ends with the loop over it, and rejects with
     * the error of any other refusal, and with Closed. */
    async *watch(resource, options = {}) {
        refuseUnknown(options, ['signal']);
        const { signal } = options;
        const watched = new Watched();
        const events = new Events(this.#calls, resource);
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
            if (error instanceof Unavailable)
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
        checkOptions(options);
        const outer = heldAround(options.signal);
        const names = namesOf(resource);
        const lease = await this.#scoped(options.signal, (scope) => this.#acquire(names, options, scope.signal, outer));
        const asked = this.#asks(names, options);
        taken.set(lease, { ...asked, lease, get over() { return lease.lost; } });
        return lease;
    }
    /** Looks up a live lease by its lease id, for a process that works under a lease which another
     * one acquired. Rejects with LeaseLost if it has ended. */
    async lease(id) {
        const headers = { 'Fencelock-Lease': id };
        return new Lease(this.#calls, await this.#calls.send({ operation: 'look up', resource: '', method: 'GET', path: '/leases/current', headers }));
    }
    /** Whether a resource is held, by which holder, for how much longer, and its queue. */
    inspect(resource) {
        return this.#inspect(resource);
    }
    async #inspect(resource, signal) {
        const { body } = await this.#calls.send({ ...ofResource('inspect', resource), signal });
        return lockState(body);
    }
    /** Ends the lease of a resource that has the fencing token, which `inspect` shows, and never a
     * later one. That is for administrators; the holder learns it from its next request. Rejects with
     * Refused of the kind "lock-not-held" if the resource is free, and with OtherLease if another
     * lease holds it. */
    async breakLock(resource, token) {
        await this.#calls.send({ ...ofBreaks(resource, { fencing_token: token }), breaks: token });
    }
    /** Ends whatever lease holds a resource. After Unavailable the lease may have ended, and another
     * `breakAny` may end the next one: `inspect` first. */
    async breakAny(resource) {
        await this.#calls.send({ ...ofBreaks(resource, { any: true }), once: true });
    }
    /** The held resources that begin with a prefix, in no particular order. A lock that is taken
     * or released meanwhile may be missed or come twice. */
    list(prefix = '') {
        return this.#pages('list', '/locks', { prefix }, 'locks', lockState);
    }
    /** Reads a guarded record, and claims nothing: before a write use `claimRecord`. A record that was never
     * written has version 0. */
    async readRecord(resource) {
        try {
            return guardedRecord((await this.#calls.send(ofRecord('read', resource, 'GET'))).body);
        }
        catch (error) {
            if (FencelockError.is(error) && error.kind === 'record-not-found')
                return guardedRecord({ resource });
            throw error;
        }
    }
    /** Claims a guarded record for a lease, and reads it: from then on no smaller token writes it.
     * Rejects with StaleToken. `lease` is of one resource; of several, pass one of its parts. */
    async claimRecord(lease) {
        return guardedRecord((await this.#calls.send(ofPart('claim', lease, 'POST'))).body);
    }
    /** Writes a JSON value under the token of a lease. Rejects with StaleToken, and nothing is written. It is not sent again
     * once a server may have done it: after Unavailable it may be written, now or later. */
    async writeRecord(lease, value) {
        if (JSON.stringify(value) === undefined)
            throw new TypeError(`a record's value must be JSON, not ${typeof value}`);
        return guardedRecord((await this.#calls.send({ ...ofPart('write', lease, 'PUT'), body: () => value, once: true })).body);
    }
    /** Deletes the value of a record under the token of a lease, as `writeRecord` writes it: its history and its highest token stay. */
    async deleteRecord(lease) {
        return guardedRecord((await this.#calls.send({ ...ofPart('delete', lease, 'DELETE'), once: true })).body);
    }
    /** The guarded records whose resources begin with a prefix, in the order of their bytes and without their values. */
    records(prefix = '') {
        return this.#pages('records', '/guarded', { prefix }, 'records', guardedRecord);
    }
    /** The newest hundred writes and claims of a record, refused ones too, the newest first. */
    history(resource) {
        return this.#pages('history', '/history', { resource }, 'attempts', attempt);
    }
    /** Ends a client: waits for a lease reject with Closed, the signals of work under `do` are aborted
     * with it, and `close` waits until the work has ended and released its leases, until those of `lock` are released, and until
     * what requests that were given up may have been granted is released. Every later call rejects with Closed. */
    async close() {
        this.#closed ??= new Closed('this client is closed');
        for (const scope of this.#scopes)
            scope.abort(this.#closed);
        for (const events of this.#watches)
            events.close();
        for (const lease of [...this.#calls.kept])
            this.#calls.inBackground(() => lease.finish());
        await this.#calls.idle();
        this.#calls.closed = this.#closed;
    }
    #urls() {
        return this.#calls.servers.map((server) => server.url);
    }
    /** Refuses what would wait for the work around it. The service says who holds what is not waited for. */
    #refuseToWait(names, options, outer) {
        if (options.wait === 0)
            return;
        const urls = this.#urls();
        for (const held of outer) {
            if (held.over || held.slots !== (options.slots !== undefined) || !overlap(urls, held.servers) || !overlap(names, held.asked))
                continue;
            throw waitsForItself(names, held.asked, held instanceof Session);
        }
    }
    #asks(names, options) {
        return { owner: this, kind: kindOf(names, options), asked: names, slots: options.slots !== undefined, servers: this.#urls() };
    }
    /** Acquires within a second of the wait, whatever the servers do. */
    async #acquire(names, options, signal, outer) {
        this.#refuseToWait(names, options, outer);
        const waitUntil = now() + Math.max(options.wait ?? Infinity, 0);
        for (;;) {
            const lease = await this.#granted(names, options, waitUntil, signal);
            if (lease.validity > 0)
                return lease;
            // This process was paused, or the answer was late: what is left of the wait is another's turn.
            await lease.finish();
            if (now() >= waitUntil)
                throw unavailable(`acquire ${lease.resource}`, lease.resource, 'the lease expired before the response arrived; a longer ttl may help');
        }
    }
    async #granted(names, options, waitUntil, signal) {
        const call = await this.#acquisition(names, options);
        const tries = this.#calls.tries({ waitUntil, deadline: waitUntil + GRACE });
        try {
            const answer = await this.#calls.send({ ...call, signal }, tries);
            for (const late of tries.late)
                this.#calls.inBackground(() => this.#endLate(late, call, answer.body));
            return new Lease(this.#calls, answer);
        }
        catch (error) {
            for (const late of tries.late)
                this.#calls.inBackground(() => this.#endLate(late, call));
            if (tries.ambiguous || tries.underWay || tries.queued)
                this.#calls.inBackground(() => this.#abandon(call));
            throw error;
        }
    }
    /** Does something that a signal and close end, and that close waits for. */
    async #scoped(signal, f) {
        if (this.#closed)
            throw this.#closed;
        const scope = new AbortController();
        const unhook = onAbort(signal, (reason) => scope.abort(reason));
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
            headers: { 'Idempotency-Key': await randomKey() },
            body: (wait) => (wait ? { ...body, wait_ms: wait } : body),
        };
    }
    /** Ends all that a request that its caller gave up may have: its lease, and its place in the queue. */
    async #abandon(call) {
        await this.#calls.send({ ...call, operation: 'cancel', path: '/cancel', deadline: now() + ABANDON, quiet: true });
    }
    /** Ends what a try was granted in a batch after its call had given it up, but not the lease that another try found under the
     * same key. */
    async #endLate(late, call, got) {
        let granted;
        try {
            const reply = await late;
            granted = reply && reply.status < 300 ? parse(reply.text) : undefined;
        }
        catch {
            if (!got)
                await this.#abandon(call);
        }
        if (!granted || (got && tokensOf(granted) === tokensOf(got)))
            return;
        const headers = { 'Fencelock-Lease': String(granted['lease_id']) };
        await this.#calls.send({ operation: 'release', resource: call.resource, method: 'DELETE', path: '/leases/current', headers, deadline: now() + ABANDON, quiet: true });
    }
    async *#pages(operation, path, query, member, read) {
        const resource = Object.values(query).join();
        encoded(resource);
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
disposable(Client, (client) => client.close());
/** What distinguishes one grant from another under the same key. */
function tokensOf(lease) {
    const parts = lease['resources'] ?? [lease];
    return parts.map((each) => each['fencing_token']).join();
}
/** Which session's work got a signal. */
const sessions = new WeakMap();
/** What leases hold. */
const taken = new WeakMap();
/** What is held around a call, as its signal and its asynchronous context tell. */
function heldAround(signal) {
    const lease = signal && leaseOf(signal);
    const known = (signal && sessions.get(signal)) || (lease && taken.get(lease));
    const others = around();
    return known ? [known, ...others.filter((held) => held !== known)] : others;
}
function overlap(a, b) {
    return a.some((each) => b.includes(each));
}
/** A lease that one `do` took and that those nested in it share. */
class Session {
    lease;
    signal;
    owner;
    kind;
    asked;
    slots;
    servers;
    over = false;
    #inside = 0; // calls of do that have not returned
    constructor(lease, of, signal) {
        this.lease = lease;
        this.signal = signal;
        ({ owner: this.owner, kind: this.kind, asked: this.asked, slots: this.slots, servers: this.servers } = of);
    }
    /** Does the work of a nested do, which may have a signal that is made of the session's. */
    async join(work, signal) {
        if (sessions.get(signal) === this)
            return this.run(work, signal);
        const scope = new AbortController();
        const unhook = [this.signal, signal].map((each) => onAbort(each, (reason) => scope.abort(reason)));
        try {
            return await this.run(work, scope.signal);
        }
        finally {
            unhook.forEach((f) => f());
        }
    }
    /** Does the work of a do, and releases the lease with the last. */
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
        return this.lease.finish();
    }
}
/** Whether an error only says that a signal was aborted. */
function isAbort(error) {
    return error instanceof LeaseLost || error?.name === 'AbortError';
}
const CLIENT_OPTIONS = ['bearer', 'holder', 'timeout', 'patience', 'poll', 'batchAfter', 'onRetry', 'fetch'];
/** Refuses what JavaScript lets through. */
function checkClientOptions(options) {
    refuseUnknown(options, CLIENT_OPTIONS);
    for (const name of ['timeout', 'patience', 'poll'])
        checkMilliseconds(name, options[name]);
    for (const [name, types] of [['bearer', ['string', 'function']], ['batchAfter', ['number']], ['holder', ['string']], ['onRetry', ['function']], ['fetch', ['function']]]) {
        const value = options[name];
        if (value !== undefined && !types.some((type) => type === typeof value))
            throw new TypeError(`${name} must be a ${types.join(' or a ')}, not ${typeof value}`);
    }
}
function refuseUnknown(options, known) {
    if (typeof options !== 'object' || options === null)
        throw new TypeError(`options must be an object, not ${options === null ? 'null' : typeof options}`);
    const unknown = Object.keys(options).find((name) => !known.includes(name));
    if (unknown)
        throw new TypeError(`unknown option ${shown(unknown)}: the options are ${known.join(', ')}`);
}
function checkMilliseconds(name, value) {
    if (value === undefined)
        return;
    if (typeof value !== 'number')
        throw new TypeError(`${name} must be a number of milliseconds, not ${typeof value}`);
    if (!(value >= 0))
        throw new RangeError(`${name} must be 0 milliseconds or more, not ${value}`);
}
const OPTIONS = ['ttl', 'wait', 'minHold', 'maxHold', 'slots', 'holder', 'metadata', 'signal', 'margin', 'onLost'];
/** Refuses what JavaScript lets through, before anything is sent. */
function checkOptions(options) {
    refuseUnknown(options, OPTIONS);
    for (const name of ['ttl', 'wait', 'minHold', 'maxHold', 'margin'])
        checkMilliseconds(name, options[name]);
}
function namesOf(resource) {
    if (typeof resource !== 'string' && !Array.isArray(resource))
        throw new TypeError(`a resource must be a string or an array of strings, not ${typeof resource}`);
    const names = typeof resource === 'string' ? [resource] : [...resource];
    if (names.length === 0)
        throw new TypeError('name a resource');
    const wrong = names.find((name) => typeof name !== 'string');
    if (wrong !== undefined)
        throw new TypeError(`a resource must be a string, not ${typeof wrong}`);
    names.forEach(encoded);
    return names;
}
/** What leases have in common that may be joined: their resources, or that they are slots of one. */
function kindOf(names, { slots }) {
    return JSON.stringify([[...names].sort(), slots !== undefined]);
}
/** A name for a path. */
function encoded(resource) {
    if (typeof resource !== 'string')
        throw new TypeError(`a resource must be a string, not ${typeof resource}`);
    try {
        return encodeURIComponent(resource);
    }
    catch {
        throw new TypeError('a resource must be valid Unicode, without half a surrogate pair');
    }
}
function ofBreaks(resource, lease) {
    encoded(resource); // refuses half a surrogate pair
    return { operation: 'break', resource, method: 'POST', path: '/breaks', body: () => ({ resource, ...lease }) };
}
function ofResource(operation, resource) {
    const name = encoded(resource);
    // The name again, where no proxy rewrites it.
    return { operation, resource, method: 'GET', path: `/locks/${name}`, headers: { 'Fencelock-Resource': name } };
}
function ofRecord(operation, resource, method) {
    const name = encoded(resource);
    return { operation, resource, method, path: `/guarded/${name}`, headers: { 'Fencelock-Resource': name } };
}
/** A request under the token of one resource. */
function ofPart(operation, { resource, token, proof }, method) {
    const call = ofRecord(operation, resource, method);
    const headers = { ...call.headers, 'Fencing-Token': String(token) };
    if (proof)
        headers['Fencing-Proof'] = proof;
    return { ...call, headers };
}
