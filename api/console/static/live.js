// What is known of the service: a listing of the locks, kept up to date by events,
// the nodes, and who the user is. Times are the page's own (performance.now), since
// clocks differ. What could not be read is a problem here (a Refusal), never a guess.
import { call, callLock, stream } from './api.js';

const MOST_LOCKS = 5000; // that are kept; a search asks the server for the others
const MOST_EVENTS = 500;
const NEWEST = 100; // of the events, which are kept whatever they are; of older ones, extensions go first
const RESYNC = 60_000;
const OVERDUE = 2_000; // after the end of a TTL
const AGAIN = 3000; // after a problem
const QUIET = 20_000; // two beats: GET /events says at least every ten seconds that it is still there

const RIGHTS = ['none', 'read', 'acquire', 'admin'];

export class Live {
  link = 'connecting'; // live, silent, lost, refused
  since = performance.now(); // of the link's state; of a silent one, when the last word came
  refusal = null; // why it is refused
  me = null; // GET /whoami; null while it is not known
  locks = new Map(); // by resource
  // listing: when it was last complete (0: never), of which search, whether that left
  // locks out, and the problem of the last one.
  listing = { at: 0, text: '', truncated: false, problem: null };
  // looked: the last look at a resource: when, whether it is held, its problem.
  looked = new Map();
  nodes = { at: 0, ready: null, problem: null }; // GET /readyz
  events = []; // newest first
  heard = 0; // how many there were
  #text = ''; // of the search
  #user = 0; // counts the users: what an earlier one may see is not shown to the next
  #crowded = false; // there are more locks than are kept
  #ended = new Map(); // the last token that has ended, by resource
  #changed;
  #lastID = '';
  #word = performance.now(); // when the last word came, or the page itself
  #tried = 0; // when the stream was last asked for
  #listing = null;
  #listAgain = 0;
  #abort = null;
  #dirty = new Set(); // resources whose queue is to be looked at
  #looking = false;

  constructor(changed) {
    this.#changed = changed;
  }

  start() {
    this.#follow();
    setInterval(() => this.#watch(), 1000);
    const visible = (work) => () => document.hidden || this.link !== 'live' || work();
    setInterval(visible(() => this.list()), RESYNC);
    setInterval(visible(() => this.look()), 10_000);
    document.addEventListener('visibilitychange', visible(() => this.list()));
  }

  // restart begins again, with the rights of another user.
  restart() {
    this.#user++;
    this.#changed('user');
    this.#crowded = false;
    this.#lastID = '';
    this.locks.clear();
    this.looked.clear();
    this.events = [];
    this.me = null;
    this.listing = { at: 0, text: '', truncated: false, problem: null };
    this.nodes = { at: 0, ready: null, problem: null };
    const stopped = this.link === 'refused';
    this.#set('connecting');
    if (stopped) this.#follow();
    else this.#abort?.abort();
  }

  // may says whether the user has the right over a resource; true while that is not known.
  may(right, resource) {
    const rule = this.me?.rules.find((r) => resource.startsWith(r.prefix));
    return !this.me || RIGHTS.indexOf(rule?.right ?? 'none') >= RIGHTS.indexOf(right);
  }

  // maySome says whether the user has the right over any resource at all.
  maySome(right) {
    return !this.me || this.me.rules.some((r) => RIGHTS.indexOf(r.right) >= RIGHTS.indexOf(right));
  }

  // away is why the server is not heard; null while it is.
  get away() {
    return this.gone ? { status: 0, problem: {} } : this.link === 'refused' ? this.refusal : null;
  }

  // gone: nothing comes from the server. The page says so in one place, and not with each thing that it shows.
  get gone() {
    return this.link === 'silent' || this.link === 'lost';
  }

  // current says whether the listing is of now.
  get current() {
    return this.link === 'live' && this.listing.at > 0 && !this.listing.problem;
  }

  // complete says whether every lock that fits the search is among the locks.
  get complete() {
    return this.current && (!this.#crowded || (this.listing.text === this.#text && !this.listing.truncated));
  }

  async #follow() {
    for (let pause = 500; ; pause = Math.min(pause * 2, 10_000)) {
      const abort = this.#abort = new AbortController();
      this.#tried = performance.now();
      try {
        await stream('?recent=200', this.#lastID, {
          word: () => { this.#word = performance.now(); },
          id: (id) => { this.#lastID = id; },
          event: (event) => this.#take(event),
          live: () => {
            pause = 500;
            this.#set('live');
            this.list();
            this.look();
          },
        }, abort.signal);
      } catch (error) {
        if (error.status === 401 || error.status === 403) {
          this.refusal = error;
          this.#set('refused');
          return; // restart begins again
        }
      }
      if (abort.signal.aborted) continue; // by restart or watch
      this.#set('lost');
      await new Promise((done) => setTimeout(done, pause));
    }
  }

  // watch finds a server that keeps the connection and says nothing, because it is frozen or something
  // between has cut it off. Such a connection may never fail, so that it is given up and another one tried.
  #watch() {
    const now = performance.now();
    if (this.link === 'refused' || now - this.#word < QUIET) return;
    if (!this.gone) this.#set('silent', this.#word);
    if (now - this.#tried >= QUIET) this.#abort.abort();
  }

  #set(link, since = performance.now()) {
    const { gone } = this;
    const changed = this.link !== link;
    this.link = link;
    if (changed && !(gone && this.gone)) this.since = since;
    this.#changed('link');
  }

  #take(event) {
    this.heard++;
    this.events.unshift(event);
    if (this.events.length > MOST_EVENTS) this.events.splice(this.events.findLastIndex((e, i) => i >= NEWEST && e.kind === 'extended'), 1);
    if (this.link === 'live') this.#apply(event); // what was before, the listing shows
    this.#changed('event', event);
  }

  #apply(e) {
    const lock = this.locks.get(e.resource);
    switch (e.kind) {
      case 'granted': case 'extended':
        this.#hold(e, lock);
        break;
      case 'released': case 'broken': case 'expired':
        this.#end(e, lock);
        break;
      case 'waiting': case 'left':
        this.#lookAt(e.resource);
        break;
      case 'node':
        this.look();
        this.list();
        break;
      case 'gap':
        this.list();
        break;
    }
  }

  #hold(e, lock) {
    if (e.fencing_token <= (this.#ended.get(e.resource) ?? 0) || (lock && lock.token > e.fencing_token)) return;
    if (!lock && this.#crowded && this.locks.size >= MOST_LOCKS) return;
    const now = performance.now();
    const same = lock && lock.token === e.fencing_token;
    this.locks.set(e.resource, {
      resource: e.resource, token: e.fencing_token, holder: e.holder || (same ? lock.holder : ''),
      ttl: e.ttl_ms, ends: now + e.ttl_ms, since: same ? lock.since : now, metadata: same ? lock.metadata : undefined,
      waiters: lock?.waiters ?? 0, queue: lock?.queue ?? [], touched: now, fresh: !same,
    });
    this.looked.delete(e.resource);
    if (!same && lock?.waiters) this.#lookAt(e.resource);
  }

  #end(e, lock) {
    const token = e.fencing_token || lock?.token || 0;
    if (token > (this.#ended.get(e.resource) ?? 0)) this.#ended.set(e.resource, token);
    if (this.#ended.size > MOST_EVENTS) this.#ended.delete(this.#ended.keys().next().value);
    if (lock && lock.token <= token) {
      this.locks.delete(e.resource);
      this.#saw(e.resource, { at: performance.now(), held: false, problem: null });
    }
  }

  // lookAt asks for the queues that have changed, one after the other.
  async #lookAt(resource) {
    this.#dirty.add(resource);
    if (this.#looking) return;
    this.#looking = true;
    while (this.#dirty.size > 0) {
      await new Promise((done) => setTimeout(done, 150)); // more may change in a moment
      const next = this.#dirty.values().next().value;
      this.#dirty.delete(next);
      await this.inspect(next).catch(() => {});
    }
    this.#looking = false;
  }

  // lookAtOverdue asks for the locks whose end no event told: their server may have stopped.
  lookAtOverdue() {
    if (this.link !== 'live') return;
    const overdue = performance.now() - OVERDUE;
    for (const lock of this.locks.values()) {
      if (lock.ends < overdue) this.#lookAt(lock.resource);
    }
  }

  // inspect asks for one lock; it returns null if the resource is free.
  async inspect(resource) {
    const [at, user] = [performance.now(), this.#user];
    try {
      const body = await callLock('GET', resource);
      if (user !== this.#user) return null;
      if (body.held) this.#listed(body, performance.now());
      else this.locks.delete(resource);
      this.#saw(resource, { at, held: body.held, queue: queueOf(body), waiters: body.waiters, problem: null });
      return body.held ? body : null;
    } catch (problem) {
      if (user === this.#user) this.#saw(resource, { at: this.looked.get(resource)?.at, problem });
      throw problem;
    } finally {
      this.#changed('locks');
    }
  }

  #saw(resource, look) {
    this.looked.delete(resource); // the oldest are the first
    this.looked.set(resource, look);
    if (this.looked.size > MOST_EVENTS) this.looked.delete(this.looked.keys().next().value);
  }

  #listed(body, now) {
    if (body.fencing_token <= (this.#ended.get(body.resource) ?? 0)) return;
    const lock = this.locks.get(body.resource);
    if (lock && lock.token > body.fencing_token) return;
    this.locks.set(body.resource, {
      resource: body.resource, token: body.fencing_token, holder: body.holder,
      ttl: Math.max(body.ttl_ms, body.remaining_ms), ends: now + body.remaining_ms, since: now - body.held_ms,
      metadata: body.metadata, waiters: body.waiters, queue: queueOf(body), touched: now, fresh: false,
    });
  }

  // search has the server find what the page does not have.
  search(text) {
    this.#text = text;
    if (this.#crowded && text !== this.listing.text) this.list();
  }

  // list asks for the locks: all, or those that fit the search where there are too many.
  async list() {
    clearTimeout(this.#listAgain);
    if (this.#listing) {
      this.#listing.again = true;
      return;
    }
    const run = this.#listing = { text: this.#crowded ? this.#text : '', again: false, user: this.#user };
    try {
      await this.#read(run);
    } catch (problem) {
      if (problem.status === undefined) throw problem; // a mistake of this page
      if (run.user === this.#user) this.listing = { ...this.listing, problem };
    }
    this.#listing = null;
    this.#changed('locks');
    if (run.again || run.user !== this.#user || (this.#crowded && run.text !== this.#text)) this.list();
    else if (this.listing.problem) this.#listAgain = setTimeout(() => this.link !== 'live' || this.list(), AGAIN);
  }

  async #read(run) {
    const began = performance.now();
    const query = run.text ? `&search=${encodeURIComponent(run.text)}` : '';
    let count = 0;
    let cursor = '';
    do {
      const page = await call('GET', `locks?limit=500${query}${cursor && `&cursor=${encodeURIComponent(cursor)}`}`);
      const now = performance.now();
      if (run.user !== this.#user) return;
      for (const lock of page.locks) this.#listed(lock, now);
      count += page.locks.length;
      cursor = page.next_cursor ?? '';
      this.#changed('locks');
      if (this.#crowded && run.text !== this.#text) return; // another search has begun
    } while (cursor && count < MOST_LOCKS);
    if (!run.text) this.#crowded = Boolean(cursor);
    for (const [resource, lock] of this.locks) {
      if (lock.touched < began) this.locks.delete(resource);
    }
    this.listing = { at: performance.now(), text: run.text, truncated: Boolean(cursor), problem: null };
    for (const [resource, { problem }] of this.looked) if (problem && problem.status !== 403) this.#lookAt(resource);
  }

  // look asks for the nodes, and who the user is.
  async look() {
    const user = this.#user;
    try {
      const [ready, me] = await Promise.all([call('GET', 'readyz', { accept: [503] }), call('GET', 'whoami')]);
      if (user !== this.#user) return;
      this.nodes = { at: performance.now(), ready, problem: null };
      this.me = me;
    } catch (problem) {
      if (user === this.#user) this.nodes = { ...this.nodes, problem };
    }
    this.#changed('nodes');
  }
}

const queueOf = (body) => body.queue.map((w) => ({ holder: w.holder, since: performance.now() - w.waiting_ms }));

// historyOf reads what the server still has of a resource's events, newest first.
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
