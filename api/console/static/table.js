// The table of locks. Rows are kept and changed only where they differ, so that a
// thousand locks cost a browser little.
import { duration, holderOf, make, name, plain, put, token } from './words.js';

const still = matchMedia('(prefers-reduced-motion: reduce)');

export class Table {
  limit = 100;
  picked = new Set(); // resources
  #live;
  #body;
  #rows = new Map(); // by resource, or by 'group ' and a prefix
  #on;

  // on.choose(resource), on.open(prefix) and on.pick() are called for what the user does.
  constructor(live, body, on) {
    this.#live = live;
    this.#body = body;
    this.#on = on;
    body.addEventListener('click', ({ target }) => {
      const row = target.closest('tr');
      if (!row || target.closest('.pick')) return;
      if (row.group !== undefined) on.open(row.group);
      else on.choose(row.resource);
    });
    body.addEventListener('change', ({ target }) => this.pick([target.closest('tr').resource], target.checked));
  }

  pick(resources, chosen) {
    for (const resource of resources) {
      if (chosen) this.picked.add(resource);
      else this.picked.delete(resource);
    }
    this.#on.pick();
  }

  // show draws the locks that match, and returns how many are shown and match.
  show({ find, sort, group, open, resource }) {
    const wanted = find.toLowerCase();
    const list = [...this.#live.locks.values()].filter((lock) => !wanted
      || lock.resource.toLowerCase().includes(wanted) || lock.holder.toLowerCase().includes(wanted));
    list.sort(by[sort] ?? byName);
    for (const gone of this.picked) if (!this.#live.locks.has(gone)) this.picked.delete(gone);
    const items = group ? grouped(list, open) : list;
    const page = items.slice(0, this.limit);
    const keep = new Set(page.map(keyOf));
    for (const [key, row] of this.#rows) if (!keep.has(key)) this.#drop(key, row);
    let at = this.#body.firstElementChild;
    for (const item of page) {
      const row = this.#row(item);
      if (item.resource !== undefined) this.#mark(row, item.resource === resource);
      if (row === at) at = at.nextElementSibling;
      else this.#body.insertBefore(row, at);
    }
    return { shown: page.length, items: items.length, matching: list.length, locks: page.filter((item) => item.resource !== undefined) };
  }

  #mark(row, chosen) {
    row.classList.toggle('chosen', chosen);
    if (chosen) row.button.setAttribute('aria-current', 'true');
    else row.button.removeAttribute('aria-current');
    const may = this.#live.may('admin', row.resource);
    row.box.disabled = !may;
    row.box.checked = may && this.picked.has(row.resource);
  }

  // drop takes a row out, and leaves the keyboard's place to its neighbour or, after the last row, to the search.
  #drop(key, row) {
    if (row.contains(document.activeElement)) giveFocus(row.nextElementSibling ?? row.previousElementSibling);
    row.remove();
    this.#rows.delete(key);
  }

  #row(item) {
    const key = keyOf(item);
    let row = this.#rows.get(key);
    if (!row) {
      row = item.resource === undefined ? newGroup(item.prefix) : newRow(item.resource);
      this.#rows.set(key, row);
    }
    if (item.resource === undefined) updateGroup(row, item);
    else if (row.lock !== item) update(row, item);
    return row;
  }

  // tick says again what time has changed.
  tick() {
    const { current, gone } = this.#live;
    const over = current ? 'ending' : gone ? '–' : 'unknown';
    for (const row of this.#rows.values()) if (row.lock) showTimes(row, row.lock, over);
  }

  // focus goes to a lock's row or, where that is gone, to the one that is in its place.
  focus(resource, place = 0) {
    requestAnimationFrame(() => {
      const row = this.#rows.get(keyOf({ resource })) ?? this.#body.children[Math.min(place, this.#body.children.length - 1)];
      giveFocus(row);
    });
  }

  placeOf(resource) {
    return Math.max(0, [...this.#body.children].indexOf(this.#rows.get(keyOf({ resource }))));
  }

  // step moves the keyboard's place up or down.
  step(from, by) {
    const row = from.closest('tr');
    const next = !row ? this.#body.firstElementChild : by > 0 ? row.nextElementSibling : row.previousElementSibling;
    (next?.button ?? (by < 0 ? document.getElementById('search') : null))?.focus();
  }
}

const giveFocus = (row) => (row?.button ?? document.getElementById('search')).focus();

const isDigit = (text, at) => text[at] >= '0' && text[at] <= '9';

// numberFrom is the digits of a text from an index on, without zeros in front.
const numberFrom = (text, at) => text.slice(at).match(/^[0-9]*/)[0].replace(/^0+(?=[0-9])/, '');

// inOrder compares names as people count: job/2 is before job/10. An Intl.Collator would take
// too long for ten thousand names in each frame.
function inOrder(a, b) {
  let at = 0;
  while (at < a.length && a[at] === b[at]) at++;
  while (at > 0 && isDigit(a, at - 1)) at--;
  const [x, y] = [numberFrom(a, at), numberFrom(b, at)];
  if (x && y && x !== y) return x.length - y.length || (x < y ? -1 : 1);
  return a < b ? -1 : a > b ? 1 : 0;
}

const byName = (a, b) => inOrder(a.resource, b.resource);
const by = {
  name: byName,
  left: (a, b) => a.ends - b.ends || byName(a, b),
  held: (a, b) => a.since - b.since || byName(a, b),
  waiting: (a, b) => b.waiters - a.waiters || byName(a, b),
};

const keyOf = (item) => (item.resource === undefined ? `group ${item.prefix}` : `lock ${item.resource}`);

// grouped puts locks below their prefix, up to the first slash, in the order in which
// the prefixes come first; those of closed groups are only counted.
function grouped(list, open) {
  const groups = new Map();
  for (const lock of list) {
    const prefix = lock.resource.slice(0, lock.resource.indexOf('/') + 1);
    if (!groups.has(prefix)) groups.set(prefix, { prefix, locks: [], waiters: 0, open: open.has(prefix) });
    groups.get(prefix).locks.push(lock);
    groups.get(prefix).waiters += lock.waiters;
  }
  return [...groups.values()].flatMap((group) => [group, ...(group.open ? group.locks : [])]);
}

function newGroup(prefix) {
  const button = make('button', 'res', prefix ? name(prefix) : 'without a prefix');
  button.type = 'button';
  const about = make('td', 'about');
  about.colSpan = 5;
  const row = make('tr', 'group', make('td', 'pick'), make('td', '', button), about);
  return Object.assign(row, { group: prefix, button, about });
}

function updateGroup(row, { locks, waiters, open }) {
  row.button.setAttribute('aria-expanded', String(open));
  put(row.about, `${locks.length} held${waiters ? ` · ${waiters} waiting` : ''}`);
}

function newRow(resource) {
  const button = make('button', 'res', name(resource));
  button.type = 'button';
  button.title = plain(resource);
  const box = make('input');
  box.type = 'checkbox';
  box.setAttribute('aria-label', `Choose ${plain(resource)}`);
  const gauge = make('span', 'gauge', make('i'));
  gauge.setAttribute('aria-hidden', 'true');
  const row = make('tr', '', make('td', 'pick', make('label', '', box)), make('td', '', button), make('td', 'holder'), make('td', 'num'), make('td', 'num held'),
    make('td', '', make('span', 'ttl', gauge, make('span', 'text'))), make('td', 'num'));
  return Object.assign(row, { resource, button, box });
}

function update(row, lock) {
  const [, , holder, number, , , waiting] = row.children;
  if (row.lock?.holder !== lock.holder) {
    holder.replaceChildren(holderOf(lock.holder));
    holder.title = plain(lock.holder);
  }
  if (row.lock?.token !== lock.token) number.replaceChildren(token(lock.token));
  if (row.lock?.waiters !== lock.waiters) waiting.replaceChildren(lock.waiters > 0 ? make('span', 'waits', String(lock.waiters)) : make('span', 'none no-waiter', '–'));
  if (lock.fresh && row.lock?.token !== lock.token) {
    row.classList.remove('fresh');
    requestAnimationFrame(() => row.classList.add('fresh'));
  }
  row.lock = lock;
  runDown(row, lock);
  showTimes(row, lock, 'ending');
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

// showTimes says how long a lease has been held and how long it still lasts, or over if its time has run out.
function showTimes(row, lock, over) {
  const now = performance.now();
  const left = lock.ends - now;
  put(row.querySelector('.held'), duration(now - lock.since));
  const cell = row.querySelector('.ttl');
  put(cell.lastElementChild, left > 0 ? duration(left) : over);
  cell.classList.toggle('low', left < lock.ttl / 4);
  if (still.matches) cell.querySelector('i').style.transform = `scaleX(${Math.max(0, Math.min(1, left / lock.ttl))})`;
}
