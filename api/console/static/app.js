// The page: what the address says is shown, from what is known.
import { Access } from './access.js';
import { bearer } from './api.js';
import { Blocked } from './blocked.js';
import { Breaking } from './breaking.js';
import { Contention } from './contention.js';
import { Detail } from './detail.js';
import { Live } from './live.js';
import { guardProblem, showPage, showStrip } from './nodes.js';
import * as address from './place.js';
import { Race } from './race.js';
import { Table } from './table.js';
import { $, duration, eventLine, fill, plain, put, say, wall, why } from './words.js';

let place = address.read();
let paused = null; // while the list of events is: what it shows, and how many events there were
let toSay = false; // what a search found is to be announced, once it is known
let waitingFrame = false;

const live = new Live((what, event) => {
  if (what === 'link' && live.link === 'refused') access.ask(refused());
  if (what === 'user') {
    contention.forget();
    blocked.forget();
  }
  if (what === 'event') announce(event);
  show();
});
const access = new Access(live);
const contention = new Contention(live, show);
const blocked = new Blocked(live, show);
const detail = new Detail(live, show);
const race = new Race($('page-race'));
const breaking = new Breaking(live, broken);
const table = new Table(live, $('rows'), { choose, open: openGroup, pick: show });

// show draws what has changed, at most once a frame.
function show() {
  if (waitingFrame) return;
  waitingFrame = true;
  const draw = () => {
    waitingFrame = false;
    showTop();
    if (place.page === 'locks') showLocks();
    if (place.page === 'blocked') blocked.show();
    if (place.page === 'contention') contention.show();
    if (place.page === 'nodes') showPage(live);
    if (place.page === 'race') race.allow(live.may('acquire', 'console/race/'), guardProblem(live));
  };
  if (document.hidden) setTimeout(draw, 500); // no frames are drawn then
  else requestAnimationFrame(draw);
}

function refused() {
  if (live.refusal.status === 403) return 'This bearer token may not see anything here. Type another one.';
  return bearer.get() ? 'The service refuses the bearer token that this tab has: it does not know it any more, or it has expired.' : '';
}

function showTop() {
  const states = {
    connecting: ['', 'connecting'],
    silent: ['is-lost', 'no word'],
    lost: ['is-lost', 'connection lost'],
    refused: ['is-lost', 'no access'],
    live: live.nodes.ready?.ready === false ? ['is-lost', 'no quorum'] : live.listing.problem ? ['is-lost', 'locks unknown'] : blind() ? ['is-lost', 'no right to read'] : ['is-live', 'live'],
  };
  const [className, text] = states[live.link];
  $('link').className = `status ${className}`;
  put($('link').lastElementChild, text);
  showGone();
  access.show();
  $('strip').hidden = place.page === 'nodes';
  showStrip(live);
}

// showGone says once, above every page, that nothing comes from the server.
function showGone() {
  const silence = live.link === 'silent' ? `No word from the server for ${duration(performance.now() - live.since)}.` : 'The connection is lost: the server does not respond.';
  put($('gone'), live.gone ? `${silence} What is shown is as of ${wall(live.since)}. The page tries again by itself. See whether the server runs, and can be reached from here.` : '');
  $('gone').hidden = !live.gone;
  $('main').classList.toggle('is-gone', live.gone);
  breaking.allow(!live.gone);
  $('break').disabled = $('break-picked').disabled = live.gone;
}

// The list of locks.

// asOf is when the list was last known to be true.
const asOf = () => wall(live.listing.problem ? live.listing.at : live.since);

// blind: the user may read no lock at all, so that an empty listing says nothing.
const blind = () => !live.away && !live.maySome('read');

// unknown says why the locks are not known, or not of now; "" if they are, or that is said above.
function unknown() {
  if (live.gone) return '';
  if (blind()) return why('The locks are unknown', { status: 403, problem: {} });
  const problem = live.away ?? live.listing.problem;
  if (!problem) return '';
  if (!live.listing.at) return why('The locks are unknown', problem);
  return why(`The locks as of ${asOf()}. Those of now are unknown`, problem);
}

// A lock's page that was just opened keeps the focus and stays in view until what is above it
// has been drawn, or the user does anything.
let settling = false;
for (const kind of ['keydown', 'pointerdown', 'touchstart', 'wheel']) addEventListener(kind, () => { settling = false; }, { passive: true });

function settle() {
  const title = $('detail-title');
  if (!settling || !title.checkVisibility()) return;
  title.focus({ preventScroll: true });
  title.scrollIntoView({ block: 'nearest' });
  settling = !(live.current && live.nodes.at);
}

function showLocks() {
  const { shown, items, matching, locks } = table.show(place);
  const problem = unknown();
  const stale = live.gone || problem !== '';
  put($('problem'), problem);
  $('problem').hidden = !problem;
  $('table').classList.toggle('stale', stale);
  $('table').hidden = live.locks.size === 0 && (stale || !live.listing.at);
  put($('counts'), counts(matching, stale));
  if (toSay && live.complete) {
    toSay = false;
    say($('counts').textContent);
  }
  put($('empty'), empty(matching, stale));
  $('empty').hidden = !$('empty').textContent;
  $('more').hidden = shown >= items;
  put($('more'), `Show ${Math.min(100, items - shown)} more of ${items - shown}`);
  $('page-locks').classList.toggle('can-break', live.maySome('admin'));
  const may = locks.filter((lock) => live.may('admin', lock.resource));
  const chosen = table.picked.size;
  $('pick-all').disabled = may.length === 0;
  $('pick-all').checked = may.length > 0 && may.every((lock) => table.picked.has(lock.resource));
  $('pick-all').indeterminate = chosen > 0 && !$('pick-all').checked;
  $('bulk').hidden = chosen === 0;
  put($('picked'), `${chosen} chosen`);
  showPanel();
  settle();
}

function counts(matching, stale) {
  if (!live.listing.at || !live.me || blind()) return stale ? 'unknown' : 'reading';
  let waiting = 0;
  for (const lock of live.locks.values()) waiting += lock.waiters;
  const some = live.listing.truncated || live.listing.text ? (place.find ? '' : `the first ${live.locks.size} held`) : `${live.locks.size} held`;
  return [stale && some ? `${some} at ${asOf()}` : some, waiting ? `${waiting} waiting` : '', place.find && !stale ? found(matching) : ''].filter(Boolean).join(' · ');
}

function found(matching) {
  if (live.complete) return `${matching} found`;
  return live.listing.text === place.find ? `the first ${matching} found` : `${matching} found, the server searches the others`;
}

function empty(matching, stale) {
  if (matching > 0 || stale || !live.listing.at || !live.me) return '';
  if (place.find) return live.complete ? 'No lock has this in its resource or holder.' : 'The server searches resources and holders…';
  return live.me?.name && live.me.rules.some((r) => r.right === 'none' || r.prefix) ? 'No resource that you may read is locked.' : 'No resource is locked.';
}

function announce(e) {
  if (live.link !== 'live') return;
  if (e.resource === place.resource && ['broken', 'expired', 'stale-token-refused'].includes(e.kind)) say(`${plain(e.resource)}: ${e.kind.replaceAll('-', ' ')}`);
  if (e.resource === place.resource && ['granted', 'stale-token-refused'].includes(e.kind)) detail.lookAtRecord(e.resource);
  if (e.kind === 'node') say(`node ${e.node} is ${e.state}`);
}

// The panel: one lock, or the activity everywhere.

function showPanel() {
  const chosen = place.resource !== '';
  $('detail').hidden = !chosen;
  $('activity').hidden = chosen;
  $('page-locks').classList.toggle('choosing', chosen);
  if (chosen) {
    detail.show();
    return;
  }
  const kinds = $('kinds').value.split(' ').filter(Boolean);
  const events = (paused?.events ?? live.events).filter((e) => !kinds.length || kinds.includes(e.kind));
  put($('activity-hint'), paused ? `Paused. New since then: ${live.heard - paused.heard}.`
    : live.link === 'refused' ? `As of ${wall(live.since)}.` : live.gone || events.length ? '' : kinds.length ? 'No such event yet.' : 'No event yet. Grants, releases, waits and refused writes appear here.');
  $('activity-hint').hidden = !$('activity-hint').textContent;
  fill($('feed'), events.slice(0, 80), (e) => eventLine(e));
}

function pause() {
  paused = paused ? null : { events: [...live.events], heard: live.heard };
  $('pause').setAttribute('aria-pressed', String(Boolean(paused)));
  put($('pause'), paused ? 'Resume' : 'Pause');
  show();
}

// What the user does.

function choose(resource) {
  location.hash = address.hash({ ...place, resource });
}

function openGroup(prefix) {
  const open = new Set(place.open);
  if (!open.delete(prefix)) open.add(prefix);
  adjust({ open });
}

// adjust changes what is shown of the list, without a step in the browser's history.
function adjust(change) {
  place = { ...place, ...change };
  history.replaceState(null, '', address.hash(place));
  linkToList();
  show();
}

let searching = 0; // timers
let saying = 0;
function search() {
  table.limit = 100;
  adjust({ find: $('search').value.trim() });
  clearTimeout(searching);
  searching = setTimeout(() => live.search(place.find), 300);
  clearTimeout(saying);
  toSay = false;
  saying = setTimeout(() => { // the user may type on
    toSay = true;
    show();
  }, 1000);
}

// broken leaves the keyboard near what was broken.
function broken(resources) {
  if (!resources.length) return;
  table.pick(resources, false);
  if (place.resource) $('detail-title').focus();
  else table.focus(resources[0], places.get(resources[0]));
}

let places = new Map(); // of the rows that are to be broken
function askToBreak(resources) {
  places = new Map(resources.map((resource) => [resource, table.placeOf(resource)]));
  breaking.ask(resources);
}

async function copy(button) {
  const node = $(button.dataset.copy);
  try {
    await navigator.clipboard.writeText(node.textContent);
    say('Copied');
    button.textContent = 'Copied';
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  } catch { // not allowed, or the page came over plain HTTP: the user copies
    getSelection().selectAllChildren(node);
    say('Selected. Copy it with the keyboard.');
  }
}

// linkToList has the other pages lead back to the list as it was.
function linkToList() {
  document.querySelector('nav a[data-page=locks]').href = address.hash({ ...place, page: 'locks', resource: '' });
}

function route() {
  const before = place;
  place = address.read();
  if (place.page !== 'locks') place = { ...before, page: place.page, name: place.name, resource: '' };
  linkToList();
  for (const page of ['locks', 'blocked', 'contention', 'nodes', 'race']) $(`page-${page}`).hidden = page !== place.page;
  for (const link of document.querySelectorAll('nav a')) {
    if (link.dataset.page === place.page) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  const titles = { locks: plain(place.resource) || 'Locks', blocked: 'Blocked', contention: 'Contention', nodes: 'Nodes', race: 'Race' };
  document.title = `${titles[place.page]} – fencelock`;
  $('search').value = place.find;
  $('sort').value = place.sort;
  $('group').checked = place.group;
  live.search(place.find);
  blocked.open(place.page === 'blocked' ? place.name : null);
  if (place.page === 'contention') contention.look();
  if (place.page === 'nodes' && live.link === 'live') live.look();
  if (place.resource !== detail.resource) {
    detail.open(place.resource);
    settling = place.resource !== '';
  }
  show();
  if (before.resource && !place.resource && place.page === 'locks') table.focus(before.resource); // after the list is drawn, which a phone hides beside a lock
}

function keys(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]') || place.page !== 'locks') return;
  const typing = event.target.matches('input:not([type=checkbox]), select');
  if (event.key === '/' && !typing) {
    event.preventDefault();
    if (place.resource && !$('search').checkVisibility()) choose('');
    setTimeout(() => $('search').focus());
  } else if (event.key === 'Escape' && event.target === $('search') && $('search').value) {
    $('search').value = '';
    search();
  } else if (event.key === 'Escape' && place.resource) {
    choose('');
  } else if ((event.key === 'ArrowDown' || event.key === 'ArrowUp') && (event.target === $('search') || event.target.closest?.('tbody'))) {
    event.preventDefault();
    table.step(event.target, event.key === 'ArrowDown' ? 1 : -1);
  }
}

const on = (id, kind, work) => $(id).addEventListener(kind, work);
on('skip', 'click', (event) => {
  event.preventDefault(); // the address is not a place in the page
  $('main').focus();
});
on('search', 'input', search);
on('blocked-name', 'change', () => { location.hash = address.hash({ page: 'blocked', name: $('blocked-name').value.trim() }); });
on('sort', 'change', () => adjust({ sort: $('sort').value }));
on('group', 'change', () => adjust({ group: $('group').checked }));
on('more', 'click', () => { table.limit += 100; show(); });
on('close', 'click', () => choose(''));
on('break', 'click', () => askToBreak([place.resource]));
on('pick-all', 'change', () => table.pick(table.show(place).locks.map((lock) => lock.resource).filter((r) => live.may('admin', r)), $('pick-all').checked));
on('pick-none', 'click', () => {
  table.pick([...table.picked], false);
  $('search').focus();
});
on('break-picked', 'click', () => askToBreak([...table.picked].sort()));
on('kinds', 'change', show);
on('pause', 'click', pause);
for (const button of document.querySelectorAll('.copy')) button.addEventListener('click', () => copy(button));
addEventListener('hashchange', route);
addEventListener('keydown', keys);
setInterval(() => { // what passes by itself
  if (document.hidden) return;
  showTop();
  if (place.page === 'blocked') blocked.show();
  if (place.page === 'contention') contention.show();
  if (place.page === 'nodes') showPage(live);
  if (place.page !== 'locks') return;
  live.lookAtOverdue();
  table.tick();
  showPanel();
}, 500);

route();
live.start();
