// The table of locks. Rows are kept by resource and changed only where they
// differ, so that a thousand locks cost a browser little.
import { duration, make, token } from './words.js';

const still = matchMedia('(prefers-reduced-motion: reduce)');

export class Table {
  limit = 100;
  #live;
  #body;
  #choose;
  #rows = new Map(); // by resource

  constructor(live, body, choose) {
    this.#live = live;
    this.#body = body;
    this.#choose = choose;
    body.addEventListener('click', (event) => {
      const resource = event.target.closest('tr')?.resource;
      if (resource !== undefined) choose(resource);
    });
  }

  // show draws the locks that match, and returns how many are shown and match.
  show(text, order, chosen) {
    const wanted = text.toLowerCase();
    const list = [...this.#live.locks.values()].filter((lock) => !wanted
      || lock.resource.toLowerCase().includes(wanted) || lock.holder.toLowerCase().includes(wanted));
    list.sort(by[order]);
    const page = list.slice(0, this.limit);
    const keep = new Set(page.map((lock) => lock.resource));
    for (const [resource, row] of this.#rows) {
      if (!keep.has(resource)) this.#drop(resource, row);
    }
    let at = this.#body.firstElementChild;
    for (const lock of page) {
      const row = this.#row(lock);
      row.classList.toggle('chosen', lock.resource === chosen);
      if (row === at) at = at.nextElementSibling;
      else this.#body.insertBefore(row, at);
    }
    return { shown: page.length, matching: list.length };
  }

  // drop takes a row out, and leaves the keyboard's place to its neighbour.
  #drop(resource, row) {
    if (row.contains(document.activeElement)) (row.nextElementSibling ?? row.previousElementSibling)?.querySelector('button').focus();
    row.remove();
    this.#rows.delete(resource);
  }

  #row(lock) {
    let row = this.#rows.get(lock.resource);
    if (!row) {
      row = newRow(lock.resource);
      this.#rows.set(lock.resource, row);
    }
    if (row.lock !== lock) update(row, lock);
    return row;
  }

  // tick says anew what time has changed.
  tick() {
    for (const row of this.#rows.values()) showLeft(row, row.lock);
  }

  focus(resource) {
    requestAnimationFrame(() => (this.#rows.get(resource)?.querySelector('button') ?? document.getElementById('search')).focus());
  }

  // step moves the keyboard's place up or down.
  step(from, by) {
    const row = from.closest('tr');
    const next = !row ? this.#body.firstElementChild : by > 0 ? row.nextElementSibling : row.previousElementSibling;
    (next?.querySelector('button') ?? (by < 0 ? document.getElementById('search') : null))?.focus();
  }
}

const byName = (a, b) => (a.resource < b.resource ? -1 : a.resource > b.resource ? 1 : 0);
const by = {
  name: byName,
  left: (a, b) => a.ends - b.ends || byName(a, b),
  held: (a, b) => a.since - b.since || byName(a, b),
  waiting: (a, b) => b.waiters - a.waiters || byName(a, b),
};

function newRow(resource) {
  const name = make('button', 'res', resource);
  name.type = 'button';
  name.title = resource;
  const gauge = make('span', 'gauge', make('i'));
  gauge.setAttribute('aria-hidden', 'true');
  const row = make('tr', '', make('td', '', name), make('td'), make('td', 'num'),
    make('td', '', make('span', 'ttl', gauge, make('span', 'text'))), make('td', 'num'));
  row.resource = resource;
  return row;
}

function update(row, lock) {
  const [, holder, number, , waiting] = row.children;
  holder.replaceChildren(lock.holder || make('span', 'none', 'no name'));
  holder.title = lock.holder;
  if (row.lock?.token !== lock.token) number.replaceChildren(token(lock.token));
  waiting.replaceChildren(lock.waiters > 0 ? make('span', 'waits', String(lock.waiters)) : make('span', 'none nobody', '–'));
  if (lock.fresh && row.lock?.token !== lock.token) {
    row.classList.remove('fresh');
    requestAnimationFrame(() => row.classList.add('fresh'));
  }
  row.lock = lock;
  runDown(row, lock);
  showLeft(row, lock);
}

// runDown lets the gauge run down by itself, without any script.
function runDown(row, lock) {
  const gauge = row.querySelector('.gauge i');
  gauge.getAnimations().forEach((animation) => animation.cancel());
  const left = Math.max(0, lock.ends - performance.now());
  const part = Math.min(1, left / lock.ttl);
  if (still.matches || left <= 0) gauge.style.transform = `scaleX(${part})`;
  else gauge.animate([{ transform: `scaleX(${part})` }, { transform: 'scaleX(0)' }], { duration: left, fill: 'forwards' });
}

function showLeft(row, lock) {
  const left = lock.ends - performance.now();
  const cell = row.querySelector('.ttl');
  const text = cell.lastElementChild;
  const words = left > 0 ? duration(left) : 'ending';
  if (text.textContent !== words) text.textContent = words;
  cell.classList.toggle('low', left < lock.ttl / 4);
  if (still.matches) cell.querySelector('i').style.transform = `scaleX(${Math.max(0, Math.min(1, left / lock.ttl))})`;
}
