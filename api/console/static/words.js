// How things are said.

export function make(tag, className, ...children) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// duration says a time in a few characters; up is what is still to come.
export function duration(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 100) return `${Math.round(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.round(s % 60)} s`;
  if (s < 86_400) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86_400)} d ${Math.round((s % 86_400) / 3600)} h`;
}

// clock says when something happened.
export function clock(at) {
  return new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit', second: '2-digit', hour12: false });
}

// token shows the end of a long number, which is what differs, and the rest softly.
export function token(number) {
  if (!number) return make('span', 'token none', '–');
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

// named keeps to itself what somebody called itself: a name may hold characters
// that turn the direction of the text around it.
export function named(holder) {
  return make('bdi', '', holder || 'somebody');
}

const was = (e) => (e.holder ? ['was held by ', named(e.holder)] : []);

// What is said of each kind, as parts of a line.
const KINDS = {
  granted: ['granted', (e) => (e.holder ? ['to ', named(e.holder)] : [])],
  extended: ['extended', (e) => [...(e.holder ? ['by ', named(e.holder), ' '] : []), `for ${duration(e.ttl_ms)}`]],
  released: ['released', (e) => (e.holder ? ['by ', named(e.holder)] : [])],
  broken: ['broken', was],
  expired: ['expired', was],
  ended: ['ended', (e) => [...was(e), e.holder ? '; nobody told how' : 'nobody told how']],
  waiting: ['waits', (e) => [named(e.holder)]],
  left: ['left the line', (e) => [named(e.holder)]],
  'stale-token-refused': [(e) => `stale ${e.attempt} refused`, (e) => [`the guard has seen …${String(e.highest).slice(-6)}; presented`]],
  node: [(e) => `node ${e.state}`, (e) => [[`was ${e.was}`, e.reason].filter(Boolean).join('; ')]],
  gap: [() => 'events are missing', (e) => [e.reason || '']],
};

// eventLine shows an event; without its resource where that is plain.
export function eventLine(e, { resource = true } = {}) {
  const [kind, about] = KINDS[e.kind] ?? [e.kind, () => []];
  const name = typeof kind === 'function' ? kind(e) : kind;
  const bad = e.kind === 'node' && e.state !== 'voting';
  const line = make('span', 'line', make('span', `kind ${bad ? 'away' : e.kind}`, name), ' ');
  if (resource && (e.resource || e.node)) line.append(make('span', 'where', e.resource || e.node), ' ');
  line.append(make('span', 'about', ...about(e)));
  if (e.fencing_token) line.append(' ', tokenEnd(e.fencing_token));
  const at = make('time', '', clock(e.at));
  at.dateTime = e.at;
  return make('li', '', at, line);
}
