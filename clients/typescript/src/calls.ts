/** Sends calls: to which server, and how often. docs/reference/clients.md has the rules. */

import { now, sleep } from './clock.js';
import { FencelockError, Held, shown, Unavailable, unavailable } from './errors.js';
import { Answer, Fetch, Listener, NoAnswer, Server } from './server.js';
import { Bounds, SHORTEST_TRY, Tries } from './tries.js';

/** A call that failed and is repeated. */
export interface Retry {
  /** Of the last try. */
  readonly error: Unavailable;
  /** So far. */
  readonly tries: number;
  /** Milliseconds since the first failure that still lasts. */
  readonly failing: number;
  /** Milliseconds before the next try. */
  readonly pause: number;
}

export type Bearer = string | (() => string | Promise<string>);

export interface CallSettings {
  readonly servers: string | readonly string[];
  readonly bearer: Bearer | undefined;
  readonly timeout: number;
  readonly patience: number;
  readonly poll: number;
  readonly batchAfter: number;
  readonly fetch: Fetch;
  readonly onRetry: ((retry: Retry) => void) | undefined;
}

export interface Call extends Bounds {
  /** What it does: acquire, extend, …. */
  readonly operation: string;
  /** What it is about; "" if that is not known. */
  readonly resource: string;
  readonly method: string;
  readonly path: string;
  readonly headers?: Record<string, string>;
  /** The body, made of how long the request may wait in the queue. */
  readonly body?: (wait: number) => unknown;
  readonly signal?: AbortSignal | undefined;
  /** No caller waits for it: its retries are not observed. */
  readonly quiet?: boolean;
  /** The fencing token of the lease that it breaks. */
  readonly breaks?: number;
  /** It is not sent again after a try that may have taken effect. */
  readonly once?: boolean;
}

export class Calls {
  readonly servers: readonly Server[];
  readonly timeout: number;
  /** Leases that are kept alive until they are released, which close does. */
  readonly kept = new Set<{ finish(): Promise<unknown> }>();
  /** Set when the client has been closed: nothing is sent any more. */
  closed: FencelockError | undefined;
  #settings: CallSettings;
  #busy = 0; // what idle waits for
  #idle: (() => void)[] = []; // called when nothing is busy any more
  #first = 0; // the server that answered last
  #slowest = SHORTEST_TRY; // how long a recent answer took; old ones fade

  constructor(settings: CallSettings) {
    const { servers, timeout, patience, batchAfter, fetch } = settings;
    const poll = Math.floor(settings.poll / 1000) * 1000;
    if (typeof servers !== 'string' && !Array.isArray(servers)) throw new TypeError(`servers must be a URL, or an array of URLs, not ${servers}`);
    const urls = typeof servers === 'string' ? servers.split(',') : servers;
    if (!urls.length || !(timeout > 0) || !(patience >= 0) || !(poll >= 1000)) {
      throw new RangeError('a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least');
    }
    this.servers = urls.map((url) => new Server(url, fetch, batchAfter));
    this.timeout = timeout;
    this.#settings = { ...settings, poll };
  }

  /** Has idle wait for what is under way. */
  async counted<T>(f: () => Promise<T>): Promise<T> {
    this.#busy++;
    try {
      return await f();
    } finally {
      if (--this.#busy === 0) this.#idle.splice(0).forEach((idle) => idle());
    }
  }

  /** Does what no caller waits for; if it fails, TTLs end what it was to end. */
  inBackground(f: () => Promise<unknown>): void {
    this.counted(f).catch(() => {});
  }

  /** Resolves when nothing is under way any more. */
  async idle(): Promise<void> {
    if (this.#busy > 0) await new Promise<void>((idle) => this.#idle.push(idle));
  }

  tries(bounds: Bounds): Tries {
    return new Tries(bounds, this.#settings.patience, this.#settings.poll);
  }

  /** Sends a call until a server answers it for good, its deadline has come, or none has for as long
   * as the client is patient. Every call but one that is to be sent `once` may be sent twice: an acquire carries
   * a key, a break the token of the lease, and the others change nothing twice. It rejects with the reason of the call's signal when that is aborted. */
  async send(call: Call, tries = this.tries(call)): Promise<Answer> {
    for (;;) {
      if (this.closed) throw this.closed;
      call.signal?.throwIfAborted();
      const answer = await this.#askAll(call, tries);
      if (!(answer instanceof FencelockError)) return answer;
      await sleep(this.#pause(call, tries, answer), call.signal);
    }
  }

  /** Reads events from one of the servers, another one for each n. */
  async listen(n: number, path: string, listener: Listener): Promise<void> {
    const server = this.servers[(this.#first + n) % this.servers.length] as Server;
    await server.listen(path, await this.#authorization(), this.timeout, listener);
  }

  /** The pause before the next try; it throws the error if there is to be none. */
  #pause(call: Call, tries: Tries, error: FencelockError): number {
    if (error instanceof Held && tries.wait().left > 0) return tries.held();
    tries.queued &&= !(error instanceof Held);
    if (!(error instanceof Unavailable) || (call.once && tries.ambiguous)) throw error;
    const pause = tries.nextPause(error);
    if (tries.over(pause)) throw error;
    if (!call.quiet) this.#settings.onRetry?.({ error, tries: tries.number, failing: tries.failing(), pause });
    return pause;
  }

  /** Asks each server once, beginning with the one that answered last. */
  async #askAll(call: Call, tries: Tries): Promise<Answer | FencelockError> {
    let failure: FencelockError | undefined;
    for (const [i, at] of this.#order().entries()) {
      if (failure && tries.number >= this.servers.length && tries.over()) break;
      const answer = await this.#ask(this.servers[at] as Server, call, tries, this.servers.length - i);
      if (!(answer instanceof Unavailable)) {
        this.#first = at;
        return answer;
      }
      tries.failed(answer);
      failure = answer;
      if (call.once && tries.ambiguous) break;
    }
    tries.silent++;
    return failure as FencelockError;
  }

  #order(): number[] {
    return this.servers.map((_, i) => (this.#first + i) % this.servers.length);
  }

  /** How long a try may take: four times what answers take, and twice as much after each round over all
   * servers without one, so that slow servers are waited for and frozen ones are not. A call that is not sent again
   * is waited for: to give it up leaves its caller in doubt. */
  #tryLimit(call: Call, tries: Tries): number {
    if (call.once) return this.timeout;
    return Math.min(this.timeout, Math.max(SHORTEST_TRY, 4 * this.#slowest) * 2 ** tries.silent);
  }

  async #ask(server: Server, call: Call, tries: Tries, unasked: number): Promise<Answer | FencelockError> {
    const { operation, resource, method, path, signal } = call;
    const what = resource ? `${operation} ${shown(resource)}` : operation;
    const { left, kept } = tries.wait();
    const { limit, probe } = tries.limit(this.#tryLimit(call, tries), unasked, kept);
    if (limit <= 0) return unavailable(what, resource, 'no response in time');
    const headers = await this.#headers(call, kept < left ? kept : 0);
    const body = call.body && JSON.stringify(call.body(left));
    tries.number++;
    tries.underWay = true;
    const asked = now();
    const overall = Math.min(limit + kept, tries.deadline - asked);
    try {
      const answer = await server.ask({ operation: what, resource, method, path, headers, body, limit: overall, probe, signal, late: (outcome) => tries.late.push(outcome) });
      tries.underWay = false;
      this.#answered(asked, kept);
      return answer;
    } catch (error) {
      if (signal?.aborted) throw signal.reason;
      tries.underWay = false;
      if (error instanceof FencelockError) this.#answered(asked, kept);
      if (error instanceof FencelockError) return tries.done(call, error) ? { sent: now(), body: {} } : error;
      if (!(error instanceof NoAnswer)) throw error;
      tries.ambiguous ||= error.sent;
      return Object.assign(unavailable(what, resource, `${server.url}: ${error.message}`), { url: server.url });
    }
  }

  /** Notes what an answer took; one that waited in the queue says nothing. */
  #answered(asked: number, waited: number): void {
    if (waited === 0) this.#slowest = Math.max(now() - asked, 0.9 * this.#slowest);
  }

  async #headers(call: Call, poll: number): Promise<Record<string, string>> {
    const headers: Record<string, string> = { ...call.headers, ...(await this.#authorization()) };
    if (call.body) headers['Content-Type'] = 'application/json';
    if (poll) headers['Prefer'] = `wait=${poll / 1000}`; // it keeps the place in the queue
    return headers;
  }

  async #authorization(): Promise<Record<string, string>> {
    const { bearer } = this.#settings;
    if (bearer === undefined) return {};
    return { Authorization: `Bearer ${credential(typeof bearer === 'string' ? bearer : await bearer())}` };
  }
}

/** A bearer token without the white space around it. What fetch says of a wrong one shows it. */
function credential(bearer: string): string {
  const text = bearer.trim();
  if (!/^[!-~]+$/.test(text)) throw new TypeError('the bearer token is empty, or has characters that no token has');
  return text;
}
