// Contention: who waits now, and the last hour of the server that the page speaks to.
import { call } from './api.js';
import { $, clock, duration, holderOf, make, name, once, put, why } from './words.js';

const PLOTS = [
  ['granted', 'Grants', 'a'],
  ['waited', 'Waits, counted when they end', 'pause'],
  ['refused_writes', 'Refused writes', 'bad'],
];
const MOST_WAITERS = 100; // that are listed
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
    setInterval(() => document.hidden || $('page-contention').hidden || this.look(), AGAIN);
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
    put($('contention-problem'), problem ? why(this.#hour ? 'What follows may be outdated' : 'The last hour is unknown', problem) : '');
    $('contention-problem').hidden = !problem;
    this.#waiters();
    once($('hour'), this.#hour, () => (this.#hour ? drawn(this.#hour) : [make('p', 'hint', problem ? 'Unknown.' : 'Reading…')]));
  }

  // waiters lists who waits now, the longest first.
  #waiters() {
    const now = performance.now();
    const all = [...this.#live.locks.values()].flatMap((lock) => lock.queue.map((w, i) => ({ ...w, lock, place: i + 1 }))).sort((a, b) => a.since - b.since);
    const some = all.slice(0, MOST_WAITERS);
    const total = [...this.#live.locks.values()].reduce((sum, lock) => sum + lock.waiters, 0);
    put($('waiters-hint'), !this.#live.current ? 'Unknown.' : total === 0 ? 'No request waits.' : total > some.length ? `The ${some.length} that have waited longest, of ${total}.` : '');
    $('waiters-hint').hidden = !$('waiters-hint').textContent;
    const cells = ({ lock, holder, place }) => [linkTo(lock.resource), holderOf(holder), String(place), holderOf(lock.holder), make('span', 'for')];
    once($('waiters'), JSON.stringify(some.map((w) => [w.lock.resource, w.lock.holder, w.holder, w.place])), () => (some.length
      ? [table(['Resource', 'Request of', 'Place', 'Held by', 'Has waited'], some.map(cells))] : []));
    [...$('waiters').querySelectorAll('.for')].forEach((cell, i) => put(cell, duration(now - some[i].since)));
  }
}

function drawn({ minutes, contended, longest_held: held }) {
  return [
    make('div', 'plots', ...PLOTS.map(([field, title, color]) => plot(title, color, minutes.map((m) => [m.start, m[field]])))),
    make('h2', '', 'Waited for most'),
    contended.length ? table(['Resource', 'Requests', 'Waited, all together'], contended.map((c) => [linkTo(c.resource), count(c.requests), duration(c.waited_ms)]))
      : make('p', 'hint', 'No request found a lock held.'),
    make('h2', '', 'Held longest'),
    held.length ? table(['Resource', 'Held for'], held.map((h) => [linkTo(h.resource), duration(h.held_ms)]))
      : make('p', 'hint', 'No lease has ended.'),
  ];
}

const count = (n) => n.toLocaleString('en');

function linkTo(resource) {
  return Object.assign(make('a', 'where', name(resource)), { href: `#/locks/${encodeURIComponent(resource)}` });
}

function table(columns, rows) {
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
