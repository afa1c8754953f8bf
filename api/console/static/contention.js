// Contention: who waits now, and the last hour of the server that the page speaks to.
import { call } from './api.js';
import { $, clock, duration, holderOf, make, name, once, put, why } from './words.js';

const PLOTS = [
  ['granted', 'Grants', 'a'],
  ['waited', 'Waits, counted when they end', 'pause'],
  ['refused_writes', 'Refused writes', 'bad'],
];
const MOST_WAITED = 100; // resources that are listed
const MOST_HELD = 20;
const AGAIN = 5000;

export class Contention {
  #live;
  #changed;
  #hour = null; // GET /activity
  #problem = null;
  #read = 0; // counts readings: each user sees only the last one

  constructor(live, changed) {
    this.#live = live;
    this.#changed = changed;
    setInterval(() => document.hidden || $('page-contention').hidden || live.gone || this.look(), AGAIN);
  }

  // forget what an earlier user saw.
  forget() {
    this.#read++;
    this.#hour = null;
  }

  async look() {
    const read = ++this.#read;
    let hour = this.#hour;
    let problem = null;
    try {
      hour = await call('GET', 'activity');
    } catch (error) {
      if (error.status === undefined) throw error; // a mistake of this page
      problem = error;
    }
    if (read !== this.#read) return;
    this.#hour = hour;
    this.#problem = problem;
    this.#changed();
  }

  show() {
    const problem = this.#live.away ?? this.#problem;
    put($('contention-problem'), problem && !this.#live.gone ? why(this.#hour ? 'What follows may be outdated' : 'The last hour is unknown', problem) : '');
    $('contention-problem').hidden = !$('contention-problem').textContent;
    this.#waiters();
    once($('hour'), this.#hour, () => (this.#hour ? drawn(this.#hour) : [make('p', 'hint', problem ? 'Unknown.' : 'Reading…')]));
    this.#held();
  }

  // waiters lists the resources that are waited for now, the longest wait first.
  #waiters() {
    const now = performance.now();
    const all = [...this.#live.locks.values()].filter((lock) => lock.waiters > 0).sort((a, b) => waitedSince(a) - waitedSince(b));
    const some = all.slice(0, MOST_WAITED);
    put($('waiters-hint'), !this.#live.current ? 'Unknown.' : all.length === 0 ? 'No request waits.' : all.length > some.length ? `The ${some.length} resources with the longest waits, of ${all.length}.` : '');
    $('waiters-hint').hidden = !$('waiters-hint').textContent;
    const cells = (lock) => [linkTo(lock.resource), count(lock.waiters), make('span', 'for'), requestsOf(lock), holderOf(lock.holder), make('span', 'for')];
    once($('waiters'), JSON.stringify(some.map((lock) => [lock.resource, lock.holder, lock.waiters, lock.queue.map((w) => w.holder)])), () => (some.length
      ? [table(['Resource', 'Waiting', 'Longest wait', 'Requests of', 'Held by', 'Held for'], some.map(cells))] : []));
    const since = some.flatMap((lock) => [waitedSince(lock), lock.since]);
    [...$('waiters').querySelectorAll('.for')].forEach((cell, i) => put(cell, Number.isFinite(since[i]) ? duration(now - since[i]) : '–'));
  }

  // held lists the leases that were held longest: those of now, and those of the last hour that have ended.
  #held() {
    const now = performance.now();
    const current = [...this.#live.locks.values()].map((lock) => ({ lock, resource: lock.resource, ms: now - lock.since }));
    const ended = (this.#hour?.longest_held ?? []).map((h) => ({ resource: h.resource, ms: h.held_ms }));
    const some = [...current, ...ended].sort((a, b) => b.ms - a.ms).slice(0, MOST_HELD);
    put($('held-hint'), !this.#live.current ? 'Unknown what is held now.' : some.length ? '' : 'No lease is held or has ended.');
    $('held-hint').hidden = !$('held-hint').textContent;
    const cells = (h) => [linkTo(h.resource), make('span', 'for'), h.lock ? make('span', '', 'held now by ', holderOf(h.lock.holder)) : 'ended'];
    once($('held'), JSON.stringify(some.map((h) => [h.resource, h.lock?.token, h.lock?.holder])), () => (some.length
      ? [table(['Resource', 'Held for', 'State'], some.map(cells))] : []));
    [...$('held').querySelectorAll('.for')].forEach((cell, i) => put(cell, duration(some[i].ms)));
  }
}

// waitedSince is when the longest wait for a lock began; Infinity while its queue is not known.
const waitedSince = (lock) => lock.queue.reduce((first, w) => Math.min(first, w.since), Infinity);

const MOST_NAMES = 3;

// requestsOf names who waits for a lock, each name once with its number of requests, those with the most first.
function requestsOf(lock) {
  const requests = Map.groupBy(lock.queue, (w) => w.holder);
  const names = [...requests].sort(([, a], [, b]) => b.length - a.length).slice(0, MOST_NAMES);
  const parts = names.flatMap(([holder, { length }], i) => [i ? ', ' : '', holderOf(holder), length > 1 ? ` × ${length}` : '']);
  const others = lock.waiters - names.reduce((sum, [, { length }]) => sum + length, 0);
  return make('span', '', ...parts, others > 0 ? `${names.length ? ' and ' : ''}${count(others)} more` : '');
}

function drawn({ minutes, contended }) {
  return [
    make('div', 'plots', ...PLOTS.map(([field, title, color]) => plot(title, color, minutes.map((m) => [m.start, m[field]])))),
    make('h2', '', 'Waited for most'),
    contended.length ? table(['Resource', 'Requests', 'Waited, all together'], contended.map((c) => [linkTo(c.resource), count(c.requests), duration(c.waited_ms)]))
      : make('p', 'hint', 'No request found a lock held.'),
  ];
}

const count = (n) => n.toLocaleString('en');

export function linkTo(resource) {
  return Object.assign(make('a', 'where', name(resource)), { href: `#/locks/${encodeURIComponent(resource)}` });
}

export function table(columns, rows) {
  return make('table', 'plain-table',
    make('thead', '', make('tr', '', ...columns.map((c) => Object.assign(make('th', '', c), { scope: 'col' })))),
    make('tbody', '', ...rows.map((cells) => make('tr', '', ...cells.map((cell, i) => {
      const td = make('td', '', cell);
      td.dataset.label = columns[i];
      return td;
    })))));
}

const SVG = $('plot').namespaceURI;

function shape(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// plot draws a bar for each minute, and says the numbers in words.
function plot(title, color, points) {
  const most = Math.max(...points.map(([, n]) => n));
  const all = points.reduce((sum, [, n]) => sum + n, 0);
  const [width, height] = [points.length * 4, 48];
  const bars = points.map(([start, n], i) => {
    const tall = n === 0 ? 0 : Math.max(2, (n / most) * height);
    const bar = shape('rect', { x: i * 4, y: height - tall, width: 3, height: tall }, shape('title', {}));
    bar.firstChild.textContent = `${clock(start).slice(0, 5)}: ${count(n)}`;
    return bar;
  });
  const words = `${count(all)} in the last hour${all ? `, at most ${count(most)} a minute` : ''}`;
  return make('figure', `plot ${color}`,
    make('figcaption', '', make('b', '', title), ' ', make('span', '', words)),
    shape('svg', { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${title}: ${words}` }, ...bars),
    make('p', 'axis', make('span', '', clock(points[0][0]).slice(0, 5)), make('span', '', 'now')));
}
