// What is known of the locks: a listing, kept up to date by events. Times are
// the page's own (performance.now), since clocks differ.
import { call, lockPath, stream } from './api.js';

const MOST_LOCKS = 5000; // that are kept; with more, a search asks the server
const MOST_EVENTS = 500;
const RESYNC = 60_000;

export class Live {
  locks = new Map(); // by resource
  events = []; // newest first
  ready = null; // GET /readyz
  truncated = false;
  link = 'connecting'; // live, lost, refused
  refusal = null; // why it is refused
  prefix = ''; // of the listing, when it is truncated
  #ended = new Map(); // the last token that has ended, by resource
  #changed;
  #lastID = '';
  #listing = null;
  #listAgain = false;
  #abort = null;
  #dirty = new Set(); // resources whose queue is to be looked at
  #looking = false;

  constructor(changed) {
    this.#changed = changed;
  }

  start() {
    this.#follow();
    setInterval(() => document.hidden || this.list(), RESYNC);
    setInterval(() => document.hidden || this.nodes(), 10_000);
    document.addEventListener('visibilitychange', () => document.hidden || this.link !== 'live' || this.list());
  }

  // restart begins anew, with other rights.
  restart() {
    this.#lastID = '';
    this.locks.clear();
    this.events = [];
    this.#abort?.abort();
    if (this.link === 'refused') this.#follow();
  }

  async #follow() {
    for (let pause = 500; ; pause = Math.min(pause * 2, 10_000)) {
      this.#abort = new AbortController();
      try {
        await stream('?recent=200', this.#lastID, {
          id: (id) => { this.#lastID = id; },
          event: (event) => this.#take(event),
          live: () => {
            pause = 500;
            this.#set('live');
            this.list();
            this.nodes();
          },
        }, this.#abort.signal);
      } catch (error) {
        if (error.status === 401 || error.status === 403) {
          this.refusal = error;
          this.#set('refused');
          return; // restart goes on
        }
      }
      this.#set('lost');
      await new Promise((done) => setTimeout(done, this.#abort.signal.aborted ? 0 : pause));
    }
  }

  #set(link) {
    this.link = link;
    if (link === 'live') this.refusal = null;
    this.#changed('link');
  }

  #take(event) {
    this.events.unshift(event);
    if (this.events.length > MOST_EVENTS) this.events.pop();
    if (this.link === 'live') this.#apply(event); // what was before, the listing shows
    this.#changed('event', event);
  }

  #apply(e) {
    const lock = this.locks.get(e.resource);
    switch (e.kind) {
      case 'granted': case 'extended':
        this.#hold(e, lock);
        break;
      case 'released': case 'broken': case 'expired': case 'ended':
        this.#end(e, lock);
        break;
      case 'waiting': case 'left':
        this.#dirty.add(e.resource);
        this.#look();
        break;
      case 'node':
        this.nodes();
        break;
      case 'gap':
        this.list();
        break;
    }
  }

  #hold(e, lock) {
    if (e.fencing_token <= (this.#ended.get(e.resource) ?? 0) || (lock && lock.token > e.fencing_token)) return;
    if (!lock && !this.#fits(e.resource)) return;
    const now = performance.now();
    const same = lock && lock.token === e.fencing_token;
    this.locks.set(e.resource, {
      resource: e.resource, token: e.fencing_token, holder: e.holder || (same ? lock.holder : ''),
      ttl: e.ttl_ms, ends: now + e.ttl_ms, since: same ? lock.since : now, metadata: same ? lock.metadata : undefined,
      waiters: lock?.waiters ?? 0, queue: lock?.queue ?? [], touched: now, fresh: !same,
    });
    if (!same && lock?.waiters) {
      this.#dirty.add(e.resource);
      this.#look();
    }
  }

  #fits(resource) {
    return !this.truncated || (resource.startsWith(this.prefix) && this.locks.size < MOST_LOCKS);
  }

  #end(e, lock) {
    const token = e.fencing_token || lock?.token || 0;
    if (token > (this.#ended.get(e.resource) ?? 0)) this.#ended.set(e.resource, token);
    if (this.#ended.size > MOST_EVENTS) this.#ended.delete(this.#ended.keys().next().value);
    if (lock && lock.token <= token) this.locks.delete(e.resource);
  }

  // look asks for the queues that have changed, one after the other.
  async #look() {
    if (this.#looking) return;
    this.#looking = true;
    while (this.#dirty.size > 0) {
      await new Promise((done) => setTimeout(done, 150)); // more may change in a moment
      const resource = this.#dirty.values().next().value;
      this.#dirty.delete(resource);
      await this.inspect(resource).catch(() => {});
    }
    this.#looking = false;
  }

  // inspect asks for one lock; it returns null if the resource is free.
  async inspect(resource) {
    const body = await call('GET', lockPath(resource));
    if (body.held) this.#listed(body, performance.now());
    else this.locks.delete(resource);
    this.#changed('locks');
    return body.held ? body : null;
  }

  #listed(body, now) {
    if (body.fencing_token <= (this.#ended.get(body.resource) ?? 0)) return;
    const lock = this.locks.get(body.resource);
    if (lock && lock.token > body.fencing_token) return;
    this.locks.set(body.resource, {
      resource: body.resource, token: body.fencing_token, holder: body.holder,
      ttl: Math.max(body.ttl_ms, body.remaining_ms), ends: now + body.remaining_ms, since: now - body.held_ms,
      metadata: body.metadata, waiters: body.waiters, queue: body.queue.map((w) => ({ holder: w.holder, since: now - w.waiting_ms })),
      touched: now, fresh: false,
    });
  }

  // list asks for all locks, or for those with the prefix when there are too many.
  async list() {
    if (this.#listing) {
      this.#listAgain = true;
      return;
    }
    this.#listing = this.#listAll();
    try {
      await this.#listing;
    } catch { /* the stream tells when the server is away; then it is listed anew */ }
    this.#listing = null;
    if (this.#listAgain) {
      this.#listAgain = false;
      setTimeout(() => this.list(), 2000);
    }
  }

  async #listAll() {
    const began = performance.now();
    const query = this.prefix ? `&prefix=${encodeURIComponent(this.prefix)}` : '';
    let count = 0;
    let cursor = '';
    do {
      const page = await call('GET', `locks?limit=500${query}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
      const now = performance.now();
      for (const lock of page.locks) this.#listed(lock, now);
      count += page.locks.length;
      cursor = page.next_cursor ?? '';
      this.#changed('locks');
    } while (cursor && count < MOST_LOCKS);
    if (!this.prefix) this.truncated = Boolean(cursor);
    for (const [resource, lock] of this.locks) {
      if (lock.touched < began) this.locks.delete(resource);
    }
    this.#changed('locks');
  }

  // search narrows the listing on the server, where the page does not have all.
  search(text) {
    if (!this.truncated || text === this.prefix) return;
    this.prefix = text;
    this.locks.clear();
    this.list();
  }

  async nodes() {
    try {
      this.ready = await call('GET', 'readyz', { accept: [503] });
      this.#changed('nodes');
    } catch { /* as above */ }
  }
}

// historyOf reads what the server still has of a resource's past, newest first.
export async function historyOf(resource) {
  const events = [];
  const abort = new AbortController();
  try {
    await stream(`?recent=100&resource=${encodeURIComponent(resource)}`, '', {
      event: (event) => event.resource === resource && events.unshift(event),
      live: () => abort.abort(),
    }, abort.signal);
  } catch (error) {
    if (error.name !== 'AbortError') throw error;
  }
  return events;
}
