// A small lock service in this process, which grants everything.
import { createServer } from 'node:http';

export class Service {
  calls = [];
  inBatches = []; // operations
  refuse = {}; // method and path → [status, kind, more of the problem]
  delay = {}; // method and path → milliseconds
  answers = {}; // method and path → body
  held = new Set(); // resources of live leases; if exclusive is set, an acquire of one is refused
  exclusive = false;
  arrived = () => {}; // called when a call has come
  events = false; // /events is a stream, with an event every few milliseconds
  #streams = 0;
  #quiet = () => {};
  #tokens = 0;
  #granted = new Map(); // idempotency key → token
  #server = createServer((request, response) => void this.#serve(request, response));

  async start() {
    await new Promise((done) => this.#server.listen(0, '127.0.0.1', done));
    this.url = `http://127.0.0.1:${this.#server.address().port}`;
    return this;
  }

  stop() {
    this.#server.closeAllConnections();
    return new Promise((done) => this.#server.close(done));
  }

  /** Resolves when no stream of events is open. */
  async quiet() {
    if (this.#streams) await new Promise((done) => (this.#quiet = done));
  }

  /** Sends events without their content, in pieces that end in the middle of a line. */
  #stream(response) {
    this.#streams++;
    response.writeHead(200, { 'Content-Type': 'text/event-stream; charset=utf-8' });
    response.write(': live\n\n');
    const pieces = setInterval(() => {
      response.write('eve');
      setImmediate(() => response.write('nt: gap\ndata: {}\n\n'));
    }, 5);
    response.on('close', () => {
      clearInterval(pieces);
      if (--this.#streams === 0) this.#quiet();
    });
  }

  /** The calls so far, such as "POST /locks", without probes. Tries of one call with the same key, which a slow machine repeats,
   * count as one. */
  get trace() {
    const key = (c) => c.headers['idempotency-key'];
    return this.calls.filter((c, i, all) => key(c) === undefined || all.findIndex((each) => each.call === c.call && key(each) === key(c)) === i).map((c) => c.call);
  }

  async #serve(request, response) {
    let text = '';
    for await (const chunk of request) text += chunk;
    const call = `${request.method} ${request.url}`;
    if (this.events && call.startsWith('GET /events')) return this.#stream(response);
    const body = text ? JSON.parse(text) : {};
    if (call !== 'GET /healthz') this.calls.push({ call, body, headers: request.headers, at: performance.now() });
    this.arrived();
    await new Promise((done) => setTimeout(done, this.delay[call] ?? 0).unref()); // the open connection keeps the process alive meanwhile
    if (response.destroyed) return;
    const [status, answer] = call === 'POST /locks/batch' && !this.refuse[call] ? [200, { results: body.operations.map((each) => this.#operation(each)) }] : this.#answer(call, body, request.headers['idempotency-key']);
    response.writeHead(status, { 'Content-Type': 'application/json', 'Fencelock-Server': 'one', 'X-Request-Id': 'req-7' });
    response.end(answer === undefined ? undefined : JSON.stringify(answer));
  }

  /** Handles one operation of a batch as if it were a single call. */
  #operation({ operation, idempotency_key, lease_id, body = {} }) {
    const call = { acquire: 'POST /locks', extend: 'POST /leases/current/extend', release: 'DELETE /leases/current' }[operation];
    this.inBatches.push({ call, body, key: idempotency_key, lease: lease_id });
    const [status, answer] = this.#answer(call, body, idempotency_key);
    return { status, body: answer, ...(status === 429 ? { retry_after_s: 1 } : {}) };
  }

  #answer(call, body, key) {
    const problem = (status, kind, more) => [status, { type: `/problems/${kind}`, title: 'No', status, detail: 'the test says so', holder: 'other', remaining_ms: 7, ...more }];
    if (this.refuse[call]) return problem(...this.refuse[call]);
    if (this.answers[call]) return [200, this.answers[call]];
    if (call === 'POST /breaks') return [204];
    if (call === 'DELETE /leases/current' || call === 'POST /cancel') {
      this.held.clear();
      return [204];
    }
    const slot = [...Array(body.slots ?? 0).keys()].map((i) => i + 1).find((n) => !this.held.has(`${body.resource}#slot${n}`));
    if (body.slots && !slot) return problem(409, 'lock-held');
    const names = body.resources ?? [slot ? `${body.resource}#slot${slot}` : body.resource ?? 'r'];
    if (call === 'POST /locks') {
      if (this.exclusive && names.some((n) => this.held.has(n))) return problem(409, 'lock-held');
      for (const n of names) this.held.add(n);
      if (!this.#granted.has(key)) this.#granted.set(key, ++this.#tokens); // a busy machine repeats some
    }
    const ttl = body.ttl_ms ?? 30_000;
    const token = this.#granted.get(key) ?? this.#tokens;
    const parts = names.map((resource) => ({ resource, fencing_token: token, fencing_proof: 'secret-proof' }));
    const lease = { lease_id: 'secret-id', ttl_ms: ttl, validity_ms: ttl - 2, waited_ms: 0, ...(slot ? { slot } : {}), ...(parts.length > 1 ? { resources: parts } : parts[0]) };
    return [200, lease];
  }
}
