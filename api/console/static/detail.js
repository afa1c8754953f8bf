// The details of one lock.
import { call } from './api.js';
import { historyOf } from './live.js';
import { hash } from './place.js';
import { $, clock, duration, eventLine, fill, holderOf, make, name, once, plain, put, token, wall, why } from './words.js';

export class Detail {
  resource = '';
  #live;
  #past = []; // its events from before the page knew of it
  #record = null; // of the guard: { attempts } or { problem }
  #changed;

  constructor(live, changed) {
    this.#live = live;
    this.#changed = changed;
    setInterval(() => document.hidden || !this.resource || live.gone || this.look(), 10_000);
  }

  // open reads what is known of the resource. "" closes.
  async open(resource) {
    this.resource = resource;
    this.#past = [];
    this.#record = null;
    if (!resource) return;
    this.look();
    const events = await historyOf(resource).catch(() => []);
    if (this.resource === resource) this.#past = events;
    this.#changed();
  }

  // look asks again for the lock with its queue and metadata, and for its record.
  look() {
    const { resource } = this;
    this.#live.inspect(resource).catch(() => {}); // the problem is kept there
    this.lookAtRecord(resource);
  }

  async lookAtRecord(resource) {
    let record;
    try {
      record = await call('GET', `history?limit=1000&resource=${encodeURIComponent(resource)}`);
    } catch (problem) {
      record = { problem };
      if (problem.status === 503) this.#live.look(); // for what the server says of its guard
    }
    if (this.resource !== resource) return;
    this.#record = record;
    this.#changed();
  }

  // state is what is known of the lock: what it says where that is not that it is held.
  get state() {
    const { resource } = this;
    const live = this.#live;
    const lock = live.locks.get(resource);
    const looked = live.looked.get(resource);
    const problem = live.away ?? looked?.problem ?? live.listing.problem;
    const at = live.link === 'live' ? looked?.at ?? live.listing.at : live.since;
    if (live.gone) return { lock, stale: true, text: lock ? `As of ${wall(live.since)}.` : 'Unknown whether it is held.' };
    if (problem && lock) return { lock, stale: true, text: why(`As of ${wall(at)}. What holds now is not known`, problem) };
    if (problem) return { text: why('Unknown whether it is held', problem), stale: true };
    if (lock) return { lock, text: '' };
    if (looked?.held === false) return { text: 'Free: no lease holds it.' };
    return { text: 'Reading…' };
  }

  show() {
    const { resource } = this;
    const live = this.#live;
    const { lock, stale, text } = this.state;
    once($('detail-title'), resource, () => [name(resource)]);
    put($('detail-state'), text);
    $('detail-state').classList.toggle('notice', Boolean(stale));
    $('detail').classList.toggle('stale', Boolean(stale));
    $('facts').hidden = !lock;
    if (lock) this.#facts(lock);
    this.#queue(lock, stale);
    $('why').href = hash({ page: 'blocked', name: resource });
    this.#guard();
    const known = new Set(live.events.map(identity));
    const events = [...live.events.filter((e) => e.resource === resource), ...this.#past.filter((e) => !known.has(identity(e)))];
    fill($('history'), events.slice(0, 100), (e) => eventLine(e, { resource: false }));
    const mayBreak = live.may('admin', resource);
    $('break').hidden = !lock || !mayBreak;
    $('no-break').hidden = mayBreak;
    put($('no-break'), `To break it takes the right admin, which ${live.me?.name || 'this user'} does not have here.`);
    $('may-break').hidden = !lock || !mayBreak;
    const at = location.protocol === 'http:' && location.host === '127.0.0.1:8080' ? '' : ` --url ${location.origin}`;
    put($('command-get'), `fencelock get${at} ${quoted(resource)}`);
    if (lock) put($('command-break'), `fencelock break --token ${lock.token}${at} ${quoted(resource)}`);
    put($('command-watch'), `curl -NG ${new URL('events', location.href).href} --data-urlencode resource=${quoted(resource)}`);
  }

  #facts(lock) {
    const now = performance.now();
    once($('fact-holder'), `holder ${lock.holder}`, () => [holderOf(lock.holder)]);
    once($('fact-token'), lock.token, () => [token(lock.token)]);
    put($('fact-left'), `${duration(lock.ends - now)} of ${duration(lock.ttl)}`);
    put($('fact-held'), duration(now - lock.since));
    const none = lock.metadata === undefined || lock.metadata === null;
    $('fact-metadata').parentElement.hidden = $('fact-metadata').parentElement.previousElementSibling.hidden = none;
    if (!none) put($('fact-metadata'), JSON.stringify(lock.metadata, null, 1).split('\n').map(plain).join('\n'));
  }

  #queue(lock, stale) {
    const now = performance.now();
    const { queue = [], waiters = 0 } = lock ?? this.#live.looked.get(this.resource) ?? {};
    const hidden = waiters - queue.length;
    once($('queue'), JSON.stringify([queue.map((w) => w.holder), hidden, stale]), () => {
      const list = queue.map((w) => make('li', '', holderOf(w.holder), make('span')));
      if (hidden > 0) list.push(make('li', 'none', `and ${hidden} more`));
      return list.length ? list : [make('li', 'none', stale ? 'Unknown.' : 'No request waits.')];
    });
    queue.forEach((w, i) => put($('queue').children[i].lastElementChild, duration(now - w.since)));
  }

  // guard shows the record's mark and the writes that were refused.
  #guard() {
    once($('record'), this.#record, () => {
      const { problem, attempts } = this.#record ?? {};
      if (!this.#record) return [make('p', 'hint', 'Reading…')];
      if (problem?.status === 404) return [make('p', 'hint', 'None: no holder has claimed or written one.')];
      if (problem?.status === 501) return [make('p', 'hint', 'This server keeps no guarded records.')];
      if (problem) return [make('p', 'notice', why('Unknown', problem))];
      const mark = attempts.reduce((most, a) => Math.max(most, a.highest_token, a.accepted ? a.fencing_token : 0), 0);
      const refused = attempts.filter((a) => !a.accepted);
      const count = (list) => `${list.length} of the last ${attempts.length} attempts`;
      return [
        make('dl', '', make('dt', '', 'Mark'), make('dd', '', token(mark)), make('dt', '', 'Refused'), make('dd', refused.length ? 'bad' : '', count(refused))),
        make('ol', 'feed', ...refused.slice(0, 10).map((a) => make('li', '', make('time', '', clock(a.at)), make('span', 'line', make('span', 'kind away', `stale ${a.kind} refused`), ' presented ', token(a.fencing_token), ', the mark was ', token(a.highest_token))))),
      ];
    });
  }
}

const identity = (e) => `${e.kind} ${e.at} ${e.fencing_token} ${e.holder}`;

// quoted is a resource as a shell (bash, zsh) reads it, its invisible characters escaped.
function quoted(resource) {
  const ends = resource.startsWith('-') ? '-- ' : '';
  if (/^[\w@%+=:,./-]+$/.test(resource)) return ends + resource;
  if (plain(resource) === resource) return `${ends}'${resource.replaceAll("'", String.raw`'\''`)}'`;
  const escaped = [...resource].map((c) => (plain(c) !== c ? `\\U${c.codePointAt(0).toString(16).padStart(8, '0')}` : /[\\']/.test(c) ? `\\${c}` : c));
  return `${ends}$'${escaped.join('')}'`;
}
