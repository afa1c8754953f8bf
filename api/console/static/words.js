// How things are said and drawn.

export const $ = (id) => document.getElementById(id);

export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// put sets a node's text; once redraws its children. Neither touches what is drawn
// already, so that focus, selection and screen readers stay where they are.
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function once(node, key, draw) {
  if (node.drawn === key) return;
  node.drawn = key;
  node.replaceChildren(...draw());
}

export const say = (text) => { $('say').textContent = text; };

// What would not be seen, or would turn or hide the text around it.
const INVISIBLE = /([\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}])/u;
const codeOf = (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}`;

// plain is a name as text, its invisible characters by their code.
export const plain = (text) => text.split(INVISIBLE).map((part, i) => (i % 2 ? `⟨${codeOf(part)}⟩` : part)).join('');

// name makes a name safe to show: text written from right to left stays within it.
export function name(text, tag = 'bdi', className = '') {
  return make(tag, className, ...text.split(INVISIBLE).map((part, i) => (i % 2 ? make('span', 'code', codeOf(part)) : part)));
}

export const holderOf = (text) => (text ? name(text) : make('i', 'none', 'no name'));

// duration says a time in a few characters.
export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.floor((s % 86_400) / 3600)} h`;
}

// clock is when something happened.
export function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
}

// wall is the same for a moment of performance.now.
export const wall = (moment) => clock(performance.timeOrigin + moment);

// token shows the end of a long number, which is what differs, and the rest softly.
export function token(number) {
  const text = String(number);
  const cut = text.length > 9 ? text.length - 6 : 0;
  return make('span', 'token', cut ? make('span', 'old', text.slice(0, cut)) : null, text.slice(cut));
}

// tokenEnd shows the digits that differ from one lease to the next.
function tokenEnd(number) {
  const text = String(number);
  const span = make('span', 'token', text.length > 9 ? `…${text.slice(-6)}` : text);
  span.title = text;
  return span;
}

// why says what is not known, why, and what to do. refusal: see api.js.
export function why(what, refusal) {
  const { status, problem } = refusal;
  const words = {
    0: ['the server does not respond', 'The page tries again by itself. See whether the server runs, and can be reached from here.'],
    401: ['the service does not know who you are', 'Sign in with a bearer token.'],
    403: ['you have no right to read it', 'An administrator gives the right in the service’s access file.'],
    429: [refusal.message, 'The page tries again by itself.'],
  }[status] ?? (problem.type === '/problems/no-quorum'
    ? [`too few nodes answer (${problem.detail ?? 'no quorum'})`, 'The page tries again by itself. Nodes says what is wrong with each node.']
    : [refusal.message, 'The page tries again by itself. The server’s log says more.']);
  return `${what}: ${words[0].replace(/\.$/, '')}. ${words[1]}`;
}

const was = (e) => (e.holder ? ['was held by ', name(e.holder)] : []);

// What is said of each kind of event, as parts of a line.
const KINDS = {
  granted: ['granted', (e) => (e.holder ? ['to ', name(e.holder)] : [])],
  extended: ['extended', (e) => [...(e.holder ? ['by ', name(e.holder), ' '] : []), `for ${duration(e.ttl_ms)}`]],
  released: ['released', (e) => (e.holder ? ['by ', name(e.holder)] : [])],
  broken: ['broken', was],
  expired: ['expired', was],
  waiting: ['waits', (e) => [holderOf(e.holder)]],
  left: ['left the queue', (e) => [holderOf(e.holder)]],
  'stale-token-refused': [(e) => `stale ${e.attempt} refused`, (e) => [`the guard has seen …${String(e.highest_token).slice(-6)}; presented`]],
  node: [(e) => `node ${e.state}`, (e) => [[`was ${e.was}`, e.reason].filter(Boolean).join('; ')]],
  gap: [() => 'events are missing', (e) => [e.reason || '']],
};

// eventLine shows an event; without its resource where that is plain.
export function eventLine(e, { resource = true } = {}) {
  const [kind, about] = KINDS[e.kind] ?? [e.kind, () => []];
  const title = typeof kind === 'function' ? kind(e) : kind;
  const bad = e.kind === 'node' && e.state !== 'voting';
  const line = make('span', 'line', make('span', `kind ${bad ? 'away' : e.kind}`, title), ' ');
  if (resource && (e.resource || e.node)) line.append(name(e.resource || e.node, 'bdi', 'where'), ' ');
  line.append(make('span', 'about', ...about(e)));
  if (e.fencing_token) line.append(' ', tokenEnd(e.fencing_token));
  const at = make('time', '', clock(e.at));
  at.dateTime = e.at;
  return make('li', '', at, line);
}

// fill draws a list of events, and leaves alone what is drawn already: it grows at its head.
export function fill(list, items, draw) {
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
