import { bearer, call, lockPath, Refusal } from './api.js';
import { historyOf, Live } from './live.js';
import { Race } from './race.js';
import { Table } from './table.js';
import { duration, eventLine, make, named, token } from './words.js';

const $ = (id) => document.getElementById(id);
const say = (text) => { $('say').textContent = text; };

let chosen = ''; // the resource whose details are shown
let past = []; // its history from before the page knew of it
let waitingFrame = false;

const live = new Live((what, event) => {
  if (what === 'link') showLink();
  if (what === 'nodes') showNodes();
  if (what === 'event') takeEvent(event);
  show();
});
const table = new Table(live, $('rows'), choose);
const race = new Race($);

// show draws what has changed, at most once a frame.
function show() {
  if (waitingFrame) return;
  waitingFrame = true;
  const draw = () => {
    waitingFrame = false;
    showLocks();
    showPanel();
  };
  if (document.hidden) setTimeout(draw, 500); // no frames are drawn then
  else requestAnimationFrame(draw);
}

function showLocks() {
  const { shown, matching } = table.show($('search').value.trim(), $('sort').value, chosen);
  let waiting = 0;
  for (const lock of live.locks.values()) waiting += lock.waiters;
  const some = live.truncated ? `the first ${live.locks.size}` : String(live.locks.size);
  $('counts').textContent = `${some} held${waiting ? ` · ${waiting} waiting` : ''}${matching < live.locks.size ? ` · ${matching} match` : ''}`;
  $('empty').hidden = matching > 0;
  $('empty').textContent = live.locks.size > 0 ? 'No lock matches.' : 'Nothing is locked.';
  $('more').hidden = shown >= matching;
  $('more').textContent = `Show ${Math.min(100, matching - shown)} more of ${matching - shown}`;
}

function showLink() {
  const words = { connecting: 'connecting', live: 'live', lost: 'connection lost, trying again', refused: 'no access' };
  if ($('link').lastElementChild.textContent === words[live.link]) return;
  $('link').className = `status ${live.link === 'live' ? 'is-live' : live.link === 'connecting' ? '' : 'is-lost'}`;
  $('link').lastElementChild.textContent = words[live.link];
  if (live.link === 'refused') askForAccess(live.refusal.status === 401
    ? 'This service asks who you are. Type your bearer token; it is kept for this tab until it is closed.'
    : 'This bearer token may not see anything here. Type another one.');
}

function showNodes() {
  const { ready, reason, voting, quorum } = live.ready;
  const nodes = live.ready.nodes ?? []; // which are for callers with a name
  $('quorum').textContent = ready ? (nodes.length ? `${voting} of ${nodes.length} vote` : 'Ready') : `Nothing is granted${reason ? `: ${reason}` : ''}`;
  $('quorum').classList.toggle('bad', !ready);
  $('quorum').title = `${quorum} are needed`;
  $('nodes').replaceChildren(...nodes.map((n) => {
    const dot = make('i', 'dot');
    dot.setAttribute('aria-hidden', 'true');
    const wait = n.wait_ms > 0 ? `, ${duration(n.wait_ms)} to go` : '';
    return make('li', n.state, dot, make('span', 'name', n.name), make('span', n.state === 'voting' ? 'unseen' : 'why', n.state + wait + (n.reason ? `: ${n.reason}` : '')));
  }));
}

function takeEvent(e) {
  if (live.link !== 'live') return;
  if (e.resource === chosen && ['broken', 'expired', 'stale-token-refused'].includes(e.kind)) say(`${e.resource}: ${e.kind.replaceAll('-', ' ')}`);
  if (e.kind === 'node') say(`node ${e.node} is ${e.state}`);
}

// The panel: one lock, or what happens everywhere.

function showPanel() {
  $('detail').hidden = !chosen;
  $('activity').hidden = Boolean(chosen);
  $('view-locks').classList.toggle('choosing', Boolean(chosen));
  if (!chosen) {
    $('activity-hint').hidden = live.events.length > 0;
    fill($('feed'), live.events.slice(0, 80), (e) => eventLine(e));
    return;
  }
  const lock = live.locks.get(chosen);
  $('detail-title').textContent = chosen;
  $('detail-state').textContent = lock ? '' : 'Free: nobody holds it.';
  $('break').hidden = !lock;
  $('facts').hidden = !lock;
  if (lock) showFacts(lock);
  showQueue(lock);
  const known = new Set(live.events.map(identity));
  const events = [...live.events.filter((e) => e.resource === chosen), ...past.filter((e) => !known.has(identity(e)))];
  fill($('history'), events.slice(0, 100), (e) => eventLine(e, { resource: false }));
}

const identity = (e) => `${e.kind} ${e.at} ${e.fencing_token} ${e.holder}`;

function showFacts(lock) {
  const now = performance.now();
  const rows = [
    ['Holder', lock.holder || make('span', 'none', 'gave no name')],
    ['Token', token(lock.token)],
    ['Time left', `${duration(lock.ends - now)} of ${duration(lock.ttl)}`],
    ['Held for', duration(now - lock.since)],
  ];
  if (lock.metadata !== undefined && lock.metadata !== null) rows.push(['Metadata', make('pre', '', JSON.stringify(lock.metadata, null, 1))]);
  $('facts').replaceChildren(...rows.flatMap(([name, value]) => [make('dt', '', name), make('dd', '', value)]));
}

function showQueue(lock) {
  const now = performance.now();
  const list = (lock?.queue ?? []).map((w) => make('li', '', w.holder ? named(w.holder) : make('i', 'none', 'no name'), make('span', '', duration(now - w.since))));
  const hidden = (lock?.waiters ?? 0) - list.length;
  if (hidden > 0) list.push(make('li', 'none', `and ${hidden} more`));
  $('queue').replaceChildren(...(list.length ? list : [make('li', 'none', 'Nobody waits.')]));
}

// fill draws a list, and leaves alone what is drawn already: it grows at its head.
function fill(list, items, draw) {
  const drawn = list.items ?? [];
  let fresh = items.indexOf(drawn[0]);
  const grows = fresh >= 0 && drawn.every((item, i) => i + fresh >= items.length || items[i + fresh] === item);
  if (!grows) {
    list.replaceChildren();
    fresh = items.length;
  }
  list.prepend(...items.slice(0, fresh).map(draw));
  while (list.children.length > items.length) list.lastElementChild.remove();
  list.items = items;
}

async function choose(resource) {
  location.hash = resource ? `#/locks/${encodeURIComponent(resource)}` : '#/locks';
}

async function showChosen(resource) {
  const before = chosen;
  chosen = resource;
  past = [];
  show();
  if (!resource) {
    if (before) table.focus(before);
    return;
  }
  requestAnimationFrame(() => requestAnimationFrame(() => $('detail-title').focus()));
  live.inspect(resource).catch(() => {}); // its metadata and queue
  const events = await historyOf(resource).catch(() => []);
  if (chosen === resource) past = events;
  show();
}

// Breaking a lock.

let doomed = null; // the lease that the dialog is about

function askToBreak() {
  doomed = live.locks.get(chosen);
  if (!doomed) return;
  $('break-resource').textContent = doomed.resource;
  sayHolder(doomed.holder, doomed.token);
  $('break-problem').hidden = true;
  $('break-dialog').showModal();
  $('break-cancel').focus();
}

function sayHolder(holder, number) {
  $('break-holder').replaceChildren('Held by ', named(holder), ` under token ${number}.`);
}

async function breakIt() {
  $('break-confirm').disabled = true;
  try {
    const now = await live.inspect(doomed.resource);
    if (!now) throw new Refusal(404, { detail: 'Nobody holds it any more: there is nothing to break.' });
    if (now.fencing_token !== doomed.token) {
      doomed = live.locks.get(doomed.resource) ?? doomed;
      sayHolder(now.holder, now.fencing_token);
      throw new Refusal(409, { detail: 'Somebody else holds it by now. Look again before you break that lease.' });
    }
    await call('DELETE', lockPath(doomed.resource));
    $('break-dialog').close();
    say(`${doomed.resource} is broken`);
  } catch (error) {
    const words = { 401: 'The service asks for a bearer token: see Access.', 403: 'Your bearer token may not break this lock: that takes an administrator’s.' };
    $('break-problem').textContent = words[error.status] ?? error.message;
    $('break-problem').hidden = false;
  }
  $('break-confirm').disabled = false;
}

// Access.

const accessWords = $('access-why').textContent;

function askForAccess(why = accessWords) {
  $('access-why').textContent = why;
  $('bearer').value = '';
  if (!$('access-dialog').open) $('access-dialog').showModal();
  $('bearer').focus();
}

function useBearer(token) {
  bearer.set(token);
  $('access-dialog').close();
  live.restart();
}

// Which view.

function route() {
  const [, view, resource] = location.hash.match(/^#\/(\w+)(?:\/(.+))?$/) ?? [, 'locks', ''];
  const racing = view === 'race';
  $('view-locks').hidden = racing;
  $('view-race').hidden = !racing;
  for (const link of document.querySelectorAll('nav a')) {
    if ((link.dataset.view === 'race') === racing) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  let name = '';
  try {
    name = racing ? '' : decodeURIComponent(resource ?? '');
  } catch { /* a link that was cut off */ }
  document.title = racing ? 'Race two clients – fencelock' : `${name || 'Locks'} – fencelock`;
  if (name !== chosen) showChosen(name);
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]') || $('view-locks').hidden) return;
  const typing = event.target.matches('input, select');
  if (event.key === '/' && !typing) {
    event.preventDefault();
    if (chosen && getComputedStyle(document.querySelector('.list')).display === 'none') choose('');
    setTimeout(() => $('search').focus());
  } else if (event.key === 'Escape' && event.target === $('search') && $('search').value) {
    $('search').value = '';
    searched();
  } else if (event.key === 'Escape' && chosen) {
    choose('');
  } else if ((event.key === 'ArrowDown' || event.key === 'ArrowUp') && (event.target === $('search') || event.target.closest?.('tbody'))) {
    event.preventDefault();
    table.step(event.target, event.key === 'ArrowDown' ? 1 : -1);
  }
}

let searching = 0;
function searched() {
  table.limit = 100;
  clearTimeout(searching);
  searching = setTimeout(() => live.search($('search').value.trim()), 300);
  show();
}

$('search').addEventListener('input', searched);
$('sort').addEventListener('change', show);
$('more').addEventListener('click', () => { table.limit += 100; show(); });
$('close').addEventListener('click', () => choose(''));
$('break').addEventListener('click', askToBreak);
$('break-cancel').addEventListener('click', () => $('break-dialog').close());
$('break-confirm').addEventListener('click', breakIt);
$('access').addEventListener('click', () => askForAccess());
$('access-cancel').addEventListener('click', () => $('access-dialog').close());
$('access-forget').addEventListener('click', () => useBearer(''));
$('access-form').addEventListener('submit', (event) => {
  event.preventDefault();
  useBearer($('bearer').value.trim());
});
$('run').addEventListener('click', () => race.run());
addEventListener('hashchange', route);
addEventListener('keydown', keys);
setInterval(() => { // what passes by itself
  if (document.hidden || $('view-locks').hidden) return;
  table.tick();
  if (chosen) showPanel();
}, 500);

route();
live.start();
