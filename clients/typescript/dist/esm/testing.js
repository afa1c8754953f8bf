/** A lock service in memory, for the tests of an application in Node.
 *
 *     import { Service } from 'fencelock/testing';
 *
 *     test('a deposit', async (t) => {
 *       const service = await Service.start(t);        // ends with the test of node:test
 *       const locks = service.client();
 *       service.end('accounts/1');                     // as if its time to live had passed
 *       service.loseNextAnswer();                      // of a request that was carried out
 *       const other = service.hold('accounts/1');      // another process has it
 *       other.release();
 *     });
 *
 * It answers like a server of fencelock, over HTTP: locks and their queue, several resources, slots, idempotency
 * keys, breaks, guarded records and events. There is no access control and no persistence, minHold and maxHold
 * change nothing, and proofs are not made.
 *
 * No lease ends by the clock: what a test does not end lasts until it is released. Each gets a time to live of
 * 1.5 s, whatever was asked for (`ttl` of `start`), so that who keeps it alive notices within half a second that it was ended. */
import { Client } from './client.js';
const resourcesOf = (asked) => (asked.resource ? [asked.resource] : [...(asked.resources ?? [])].sort());
/** A lock service in memory, on a port of its own. */
export class Service {
    /** Its URL, for clients and for programs under test. */
    url;
    #server;
    #ttl;
    #minted = 0;
    #leases = new Map();
    #holders = new Map();
    #keys = new Map();
    #queue = [];
    #records = new Map();
    #readers = new Set(); // called after a change
    #clients = [];
    #lose = 0;
    #lost = 0;
    /** Starts a service. With the context of a test of node:test it ends with the test; without, by `stop`. */
    static async start(test, { ttl = 1500 } = {}) {
        const node = 'node:http'; // a variable, so that bundlers do not look for it
        const { createServer } = await import(/* @vite-ignore */ node);
        let serve;
        const server = createServer((request, response) => void serve(request, response));
        await new Promise((done) => server.listen(0, '127.0.0.1', done));
        const service = new Service(server, `http://127.0.0.1:${server.address().port}`, ttl);
        serve = (request, response) => service.#serve(request, response);
        test?.after(() => service.stop());
        return service;
    }
    constructor(server, url, ttl) {
        this.#server = server;
        this.url = url;
        this.#ttl = ttl;
    }
    /** A client of the service, which is closed with it. */
    client(options = {}) {
        const client = new Client(this.url, options);
        this.#clients.push(client);
        return client;
    }
    async stop() {
        await Promise.all(this.#clients.map((client) => client.close()));
        const stopped = new Promise((done) => this.#server.close(done));
        this.#server.closeAllConnections?.();
        await stopped;
    }
    /** Ends the lease of a resource now, as if its time to live had passed. Its holder learns of it with its next extend. */
    end(resource) {
        const lease = this.#holders.get(resource);
        if (!lease)
            throw new Error(`no lease holds ${resource}`);
        this.#end(lease);
    }
    /** Has the next request carried out, and closes its connection in place of an answer. Called twice, it is for two requests. */
    loseNextAnswer() {
        this.#lose++;
    }
    /** How many answers were lost. */
    get lost() {
        return this.#lost;
    }
    /** Has another process hold the resources. */
    hold(...resources) {
        if (!resources.length || resources.some((r) => this.#holders.has(r)))
            throw new Error(`another process cannot hold ${resources.join(', ')}: it is held`);
        const lease = this.#grant({ holder: 'another process' }, [...resources].sort(), 0, '');
        return { token: lease.parts[0].token, release: () => this.#end(lease) };
    }
    /** Resolves when so many requests wait for the resource. */
    async awaitWaiters(resource, n = 1) {
        const waiting = () => this.#queue.filter((w) => resourcesOf(w.asked).includes(resource)).length;
        while (waiting() < n) {
            await new Promise((changed) => {
                const reader = () => {
                    this.#readers.delete(reader);
                    changed();
                };
                this.#readers.add(reader);
            });
        }
    }
    // Locks
    /** What a request may have now: its resources, or the name and number of a slot. */
    #free(asked, reserved) {
        const taken = (name) => this.#holders.has(name) || reserved.has(name);
        const names = resourcesOf(asked);
        if (!asked.slots)
            return names.some(taken) ? undefined : [names, 0];
        for (let n = 1; n <= asked.slots; n++)
            if (!taken(`${asked.resource}#slot${n}`))
                return [[`${asked.resource}#slot${n}`], n];
        return undefined;
    }
    #grant(asked, names, slot, key) {
        const id = `lease-${this.#minted}`;
        const lease = { id, asked, parts: names.map((resource) => ({ resource, token: ++this.#minted })), slot, since: performance.now() };
        this.#leases.set(id, lease);
        for (const name of names)
            this.#holders.set(name, lease);
        if (key)
            this.#keys.set(key, lease);
        this.#changed();
        return lease;
    }
    #end(lease) {
        if (!this.#leases.delete(lease.id))
            return;
        for (const { resource } of lease.parts)
            this.#holders.delete(resource);
        this.#wake();
        this.#changed();
    }
    /** Grants what may be granted, in the order of arrival. */
    #wake() {
        const reserved = new Set();
        for (const waiter of [...this.#queue]) {
            const free = this.#free(waiter.asked, reserved);
            if (!free) {
                resourcesOf(waiter.asked).forEach((name) => reserved.add(name));
                continue;
            }
            this.#leave(waiter);
            waiter.give(this.#grant(waiter.asked, ...free, waiter.key));
        }
    }
    #leave(waiter) {
        this.#queue = this.#queue.filter((other) => other !== waiter);
    }
    #changed() {
        for (const reader of [...this.#readers])
            reader();
    }
    #acquire(asked, headers, gone) {
        const names = resourcesOf(asked);
        const key = headers['idempotency-key'] ?? '';
        if (!names.length || names.some((name) => !name) || (asked.slots && names.length > 1))
            return problem(400, 'invalid-request', 'Name a resource');
        const known = this.#keys.get(key);
        if (known && this.#leases.has(known.id))
            return [200, this.#body(known)];
        this.#queue = this.#queue.filter((w) => !key || w.key !== key); // its last poll
        const free = this.#free(asked, new Set(this.#queue.flatMap((w) => resourcesOf(w.asked))));
        if (free)
            return [201, this.#body(this.#grant(asked, ...free, key))];
        return asked.wait_ms ? this.#wait(asked, key, headers['prefer'], gone) : this.#held(asked, 'lock-held');
    }
    async #wait(asked, key, prefer, gone) {
        const poll = prefer?.startsWith('wait=') ? Number(prefer.slice(5)) * 1000 : Infinity;
        const since = performance.now();
        let timer;
        let left = false;
        let waiter;
        const lease = await new Promise((give) => {
            waiter = { asked, key, since, give };
            this.#queue.push(waiter);
            timer = setTimeout(give, Math.min(asked.wait_ms, poll), undefined);
            void gone.then(() => {
                left = true;
                give(undefined);
            });
            this.#changed();
        });
        clearTimeout(timer);
        this.#queue = this.#queue.filter((other) => other !== waiter);
        if (left && lease)
            this.#end(lease);
        this.#wake();
        if (!lease)
            return this.#held(asked, 'wait-timeout');
        return [201, { ...this.#body(lease), waited_ms: Math.floor(performance.now() - since) }];
    }
    #held(asked, kind) {
        const resource = resourcesOf(asked).find((name) => this.#holders.has(name));
        const waiters = this.#queue.length;
        if (resource === undefined)
            return problem(409, kind, 'The resource is held', { holder: '', remaining_ms: 0, waiters });
        return problem(409, kind, 'The resource is held', { resource, ...this.#holder(resource), waiters });
    }
    #holder(resource) {
        const { asked, parts } = this.#holders.get(resource);
        return { holder: asked.holder ?? '', fencing_token: parts.find((p) => p.resource === resource)?.token ?? 0, remaining_ms: this.#ttl };
    }
    #cancel(key) {
        for (const waiter of this.#queue.filter((w) => key && w.key === key)) {
            this.#leave(waiter);
            waiter.give(undefined);
        }
        const lease = this.#keys.get(key);
        if (lease)
            this.#end(lease);
        this.#wake();
        return [204];
    }
    #body(lease) {
        const { asked, parts, slot } = lease;
        const common = { lease_id: lease.id, ttl_ms: this.#ttl, validity_ms: this.#ttl, waited_ms: 0, max_hold_remaining_ms: null, holder: asked.holder ?? '', metadata: asked.metadata ?? null };
        const resources = parts.map(({ resource, token }) => ({ resource, fencing_token: token }));
        return parts.length > 1 ? { kind: 'bundle', ...common, resources } : { kind: 'lease', ...common, ...resources[0], ...(slot ? { slot } : {}) };
    }
    #ofLease(id, release) {
        const lease = this.#leases.get(id);
        if (!lease)
            return problem(404, 'lease-not-held', 'The lease has ended');
        if (!release)
            return [200, this.#body(lease)];
        this.#end(lease);
        return [204];
    }
    #break({ resource, fencing_token, any }) {
        const lease = this.#holders.get(resource);
        if (!lease)
            return problem(404, 'lock-not-held', 'No lease holds the resource');
        if (!any && this.#holder(resource).fencing_token !== fencing_token)
            return problem(412, 'other-lease', 'Another lease holds the resource', { resource, ...this.#holder(resource), waiters: 0 });
        this.#end(lease);
        return [204];
    }
    #lock(resource) {
        const now = performance.now();
        const waiting = this.#queue.filter((w) => resourcesOf(w.asked).includes(resource));
        const queue = waiting.map((w) => ({ holder: w.asked.holder ?? '', waiting_ms: Math.floor(now - w.since) }));
        const lease = this.#holders.get(resource);
        const lock = { resource, held: Boolean(lease), waiters: queue.length, queue };
        if (!lease)
            return lock;
        return { ...lock, ...this.#holder(resource), ttl_ms: this.#ttl, held_ms: Math.floor(now - lease.since), metadata: lease.asked.metadata ?? null };
    }
    // Guarded records
    #attempt(resource, kind, text, value) {
        if (text === undefined)
            return problem(428, 'token-required', 'Send the header Fencing-Token');
        if (!/^[1-9]\d*$/.test(text))
            return problem(400, 'invalid-request', 'The token is malformed');
        const token = Number(text);
        const record = this.#records.get(resource) ?? { token: 0, value: null, version: 0, attempts: [] };
        this.#records.set(resource, record);
        const accepted = token >= record.token;
        const highest = record.token;
        if (accepted)
            record.token = token;
        if (accepted && kind === 'write')
            Object.assign(record, { value, version: record.version + 1 });
        record.attempts.unshift({ fencing_token: token, highest_token: highest, kind, accepted, version: record.version, at: new Date().toISOString() });
        return accepted ? this.#read(resource) : problem(412, 'stale-token', 'The fencing token is stale', { resource, presented: token, highest_token: highest });
    }
    #list(prefix) {
        const found = [...this.#records].filter(([resource]) => resource.startsWith(prefix)).sort();
        return [200, { records: found.map(([resource, { token, version }]) => ({ resource, highest_token: token, version })) }];
    }
    #read(resource, history = false) {
        const record = this.#records.get(resource);
        if (!record)
            return problem(404, 'record-not-found', 'The record was neither written nor claimed');
        if (history)
            return [200, { resource, attempts: record.attempts }];
        return [200, { resource, highest_token: record.token, value: record.value, version: record.version }];
    }
    // HTTP
    async #serve(request, response) {
        if (request.url.startsWith('/events'))
            return this.#events(response);
        const loses = this.#lose > 0 && request.url !== '/healthz';
        if (loses)
            this.#lose--;
        const gone = new Promise((closed) => response.on('close', closed));
        let text = '';
        for await (const chunk of request)
            text += String(chunk);
        const [status, body] = await this.#answer(request, text ? JSON.parse(text) : {}, gone);
        if (loses) {
            this.#lost++;
            return request.socket.destroy();
        }
        response.writeHead(status, { 'Content-Type': status < 400 ? 'application/json' : 'application/problem+json', 'Fencelock-Server': 'testing' });
        response.end(body && JSON.stringify(body));
    }
    async #answer({ method, url, headers }, body, gone) {
        const { pathname, searchParams } = new URL(url, this.url);
        const lease = headers['fencelock-lease'] ?? '';
        const routes = {
            'POST /locks': () => this.#acquire(body, headers, gone),
            'GET /locks': () => [200, { locks: [...this.#holders.keys()].filter((r) => r.startsWith(searchParams.get('prefix') ?? '')).sort().map((r) => this.#lock(r)) }],
            'POST /locks/batch': async () => [200, { results: await Promise.all(body.operations.map((each) => this.#operation(each, gone))) }],
            'POST /cancel': () => this.#cancel(headers['idempotency-key'] ?? ''),
            'POST /breaks': () => this.#break(body),
            'GET /leases/current': () => this.#ofLease(lease, false),
            'POST /leases/current/extend': () => this.#ofLease(lease, false),
            'DELETE /leases/current': () => this.#ofLease(lease, true),
            'GET /guarded': () => this.#list(searchParams.get('prefix') ?? ''),
            'GET /history': () => this.#read(searchParams.get('resource') ?? '', true),
            'GET /healthz': () => [200, { status: 'ok' }],
            'GET /readyz': () => [200, { ready: true, reason: '', quorum: 1, voting: 1, nodes: [] }],
            'GET /whoami': () => [200, { name: '', rules: [{ prefix: '', right: 'admin' }] }],
        };
        const route = routes[`${method} ${pathname}`];
        if (route)
            return route();
        const [, head, name = ''] = pathname.split('/');
        const resource = decodeURIComponent(name);
        if (head === 'locks' && method === 'GET')
            return [200, this.#lock(resource)];
        if (head !== 'guarded')
            return problem(404, 'not-found', 'No such operation');
        if (method === 'GET')
            return this.#read(resource);
        return this.#attempt(resource, method === 'POST' ? 'claim' : 'write', headers['fencing-token'], method === 'PUT' ? body : null);
    }
    /** One operation of a batch, as a request of its own. */
    async #operation({ operation, idempotency_key, lease_id, body }, gone) {
        const [method, url] = { acquire: ['POST', '/locks'], extend: ['POST', '/leases/current/extend'], release: ['DELETE', '/leases/current'] }[operation];
        const headers = { 'idempotency-key': idempotency_key, 'fencelock-lease': lease_id };
        const [status, answer] = await this.#answer({ method, url, headers }, body ?? {}, gone);
        return { status, body: answer };
    }
    /** Says that something has changed, and not what: a reader looks. */
    #events(response) {
        response.writeHead(200, { 'Content-Type': 'text/event-stream' });
        response.write(': live\n\n');
        const tell = () => response.write('event: gap\ndata: {}\n\n');
        this.#readers.add(tell);
        response.on('close', () => this.#readers.delete(tell));
    }
}
function problem(status, kind, title, members = {}) {
    return [status, { type: `/problems/${kind}`, title, status, detail: 'fencelock/testing answers so', ...members }];
}
