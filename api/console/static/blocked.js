// Blocked: who is in the way of a resource or a holder, and deadlocks.
import { call } from './api.js';
import { linkTo, table } from './contention.js';
import { $, duration, holderOf, make, name, once, put, token, why } from './words.js';

const LATE = 10_000; // ms until it is read again if nothing was heard
const REST = 20; // the page rests for this many times as long as the server took

export class Blocked {
  #live;
  #changed;
  #asked = null; // the name; "" for all that wait, null while the page is not shown
  #found = null; // GET /blocked
  #problem = null;
  #at = -Infinity; // when it was found
  #heard = 0; // events when it was asked for
  #rests = 0; // until then; Infinity while it is read
  #read = 0; // counts readings: only the last one is shown

  constructor(live, changed) {
    this.#live = live;
    this.#changed = changed;
    setInterval(() => document.hidden || this.#asked === null || live.gone || !this.#due() || this.look(), 1000);
  }

  #due() {
    const now = performance.now();
    return now >= this.#rests && (this.#live.heard !== this.#heard || now >= this.#at + LATE);
  }

  // open asks for a name; null says that the page is not shown.
  open(asked) {
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.forget();
    $('blocked-name').value = asked ?? '';
    if (asked !== null) this.look();
  }

  // forget what was read, for another name or an earlier user.
  forget() {
    this.#read++;
    this.#found = this.#problem = null;
    this.#at = -Infinity;
    this.#rests = 0;
  }

  async look() {
    const read = ++this.#read;
    const began = performance.now();
    this.#heard = this.#live.heard;
    this.#rests = Infinity;
    let found = this.#found;
    let problem = null;
    try {
      found = await call('GET', `blocked?name=${encodeURIComponent(this.#asked)}`);
    } catch (error) {
      if (error.status === undefined) throw error; // a mistake of this page
      problem = error;
    }
    if (read !== this.#read) return;
    if (!problem) this.#at = performance.now();
    this.#found = found;
    this.#problem = problem;
    this.#rests = performance.now() + (problem ? LATE : REST * (this.#at - began));
    this.#changed();
  }

  show() {
    const problem = this.#live.away ?? this.#problem;
    put($('blocked-problem'), problem && !this.#live.gone ? why(this.#found ? 'What follows may be outdated' : 'Who is in the way is unknown', problem) : '');
    $('blocked-problem').hidden = !$('blocked-problem').textContent;
    put($('blocked-hint'), this.#hint(problem));
    $('blocked-hint').hidden = !$('blocked-hint').textContent;
    const { deadlocks = [], holders = [] } = this.#found ?? {};
    once($('deadlocks'), keyOf(deadlocks), () => deadlocks.map(deadlocked));
    once($('chain'), keyOf(holders), () => (holders.length ? [table(['Holder', 'Holds', 'Waits for', 'For', 'Blocked by'], holders.flatMap(rowsOf))] : []));
    const since = this.#live.gone ? 0 : performance.now() - this.#at;
    tick($('deadlocks'), deadlocks.flatMap((d) => [d.deadlocked_ms, ...d.waits.map((w) => w.waiting_ms)]), since);
    tick($('chain'), holders.flatMap((h) => h.waits.map((w) => w.waiting_ms)), since);
  }

  #hint(problem) {
    if (!this.#found) return problem || this.#live.gone ? '' : 'Reading…';
    const { holders, locks, unlabelled, truncated } = this.#found;
    return [
      holders.length ? '' : locks.some((lock) => lock.held) ? 'It is held by a lease without a label, so the chain ends there.' : this.#asked ? 'It is free, and no holder has this label.' : 'No holder waits.',
      unlabelled ? `Leases and waits without a label, which are in no chain: ${unlabelled}.` : '',
      truncated ? 'Not everything was read: holders, waits and deadlocks may be missing.' : '',
    ].filter(Boolean).join(' ');
  }
}

// keyOf is all that is drawn but the times.
const keyOf = (list) => JSON.stringify(list, (key, value) => (key.endsWith('_ms') ? undefined : value));

// tick updates the times, which were true some milliseconds ago.
function tick(node, times, since) {
  [...node.querySelectorAll('.for')].forEach((cell, i) => put(cell, duration(times[i] + since)));
}

const linkToHolder = (holder) => (holder ? Object.assign(make('a', 'where', name(holder)), { href: `#/blocked/${encodeURIComponent(holder)}` }) : holderOf(''));

function deadlocked({ waits, break: lease }) {
  return make('article', 'store lost',
    make('h2', '', 'Deadlock for ', make('span', 'for')),
    table(['Holder', 'Waits for', 'For', 'Blocked by', 'Under token'], waits.map((w) => [linkToHolder(w.holder), linkTo(w.resource), make('span', 'for'), linkToHolder(w.held_by), token(w.fencing_token)])),
    make('p', '', 'To end it, break the lease of ', name(lease.holder), ', whose wait began last: ', linkTo(lease.resource)));
}

function rowsOf({ holder, holds, waits }) {
  const held = make('span', '', ...holds.flatMap(({ resource }, i) => [i ? ', ' : '', linkTo(resource)]));
  const row = (w) => [linkToHolder(holder), held.cloneNode(true), linkTo(w.resource), make('span', 'for'), linkToHolder(w.held_by)];
  return waits.length ? waits.map(row) : [[linkToHolder(holder), held, make('i', 'none', 'nothing'), '', '']];
}
