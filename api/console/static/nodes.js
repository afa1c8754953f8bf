// The nodes: in a strip on every page, and on a page of their own.
import { $, duration, make, once, put, wall, why } from './words.js';

const DO = {
  unreachable: 'See whether Redis runs there, and whether this server can reach the address.',
  quarantined: 'A vote counts again, without further action, once every lease that may be forgotten there has ended.',
  refused: 'Change what the reason names; the server looks again by itself.',
};

// alike puts nodes together that share state and reason, those that vote first.
function alike(nodes) {
  const groups = new Map();
  for (const n of nodes) {
    const key = `${n.state} ${n.reason}`;
    if (!groups.has(key)) groups.set(key, { state: n.state, reason: n.reason, nodes: [] });
    groups.get(key).nodes.push(n);
  }
  return [...groups.values()].sort((a, b) => (b.state === 'voting') - (a.state === 'voting'));
}

const dot = (state) => {
  const i = make('i', `dot ${state}`);
  i.setAttribute('aria-hidden', 'true');
  return i;
};

// guardProblem says what is wrong with the storage of guarded records; "" if nothing is.
export const guardProblem = ({ nodes: { ready } }) => (ready?.guard?.ready === false ? sentence(ready.guard.reason) : '');

// summary is one sentence on the whole, and whether that is bad.
function summary({ away, gone: silent, link, since, nodes: { at, ready, problem } }) {
  const gone = away ?? problem;
  if (silent) return at ? { stale: true, text: `The nodes as of ${wall(Math.min(at, since))}` } : { text: 'The nodes are unknown' };
  if (gone && !at) return { bad: true, text: why('The nodes are unknown', gone) };
  if (gone) return { bad: true, stale: true, text: why(`The nodes as of ${wall(link === 'live' ? at : Math.min(at, since))}`, gone) };
  if (!ready) return { text: 'Reading the nodes…' };
  const count = ready.nodes.length ? `${ready.voting} of ${ready.nodes.length} nodes vote, ${ready.quorum} needed` : '';
  if (!ready.ready) return { bad: true, text: `No lock is granted${count && `: ${count}`}. ${sentence(ready.reason)}` };
  return { text: count || 'Ready' };
}

const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1).replace(/\.$/, '')}.` : '');

// left is what is left of a node's quarantine.
const left = (live, n) => Math.max(0, n.wait_ms - (performance.now() - live.nodes.at));
const waits = (live, n) => (left(live, n) > 0 ? duration(left(live, n)) : '');

export function showStrip(live) {
  const { text, bad, stale } = summary(live);
  const groups = alike(live.nodes.ready?.nodes ?? []);
  once($('strip'), JSON.stringify([text, stale, guardProblem(live), groups.map((g) => [g.state, g.reason, g.nodes.map((n) => n.name)])]), () => [
    make('b', bad ? 'bad' : '', text),
    ...groups.map(({ state, reason, nodes }) => {
      const wait = make('span', 'wait');
      wait.nodes = nodes;
      return make('span', `nodes ${state}`, ...nodes.flatMap((n) => [dot(state), make('span', 'name', n.name), ' ']),
        state === 'voting' ? make('span', 'unseen', 'voting') : make('span', 'why', state, wait, reason ? `: ${reason}` : ''));
    }),
    guardProblem(live) ? make('b', 'bad', `No guarded record can be read or written: ${guardProblem(live)}`) : null].filter(Boolean));
  $('strip').classList.toggle('stale', Boolean(stale));
  for (const wait of $('strip').querySelectorAll('.wait')) {
    const longest = wait.nodes.reduce((a, b) => (a.wait_ms > b.wait_ms ? a : b));
    put(wait, waits(live, longest) && `, ${waits(live, longest)} left`);
  }
}

export function showPage(live) {
  const { text, bad, stale } = summary(live);
  const { ready, at } = live.nodes;
  const key = JSON.stringify([text, stale, ready]);
  once($('nodes'), key, () => {
    const nodes = ready?.nodes ?? [];
    const hidden = ready && !nodes.length ? [make('p', 'hint', 'The nodes are shown to callers that the service knows: sign in.')] : [];
    const reasons = alike(nodes).filter((g) => g.state !== 'voting').map((g) => make('p', `notice ${g.state}`,
      make('b', '', g.nodes.map((n) => n.name).join(', ')), ` ${g.nodes.length > 1 ? 'are' : 'is'} ${g.state}${g.reason ? `: ${g.reason}` : ''}. ${DO[g.state] ?? ''}`));
    return [make('p', bad ? 'bad' : '', text), ...hidden, ...reasons, ...(nodes.length ? [table(nodes)] : []), ...guard(live)];
  });
  $('nodes').classList.toggle('stale', Boolean(stale));
  for (const cell of $('nodes').querySelectorAll('[data-since]')) put(cell, duration(Number(cell.dataset.since) + performance.now() - at));
  for (const cell of $('nodes').querySelectorAll('[data-wait]')) put(cell, waits(live, { wait_ms: Number(cell.dataset.wait) }) || 'waits for other nodes');
}

function table(nodes) {
  const columns = ['Node', 'State', 'For', 'Version', 'Role', 'Quarantine left', 'Last error'];
  const unsaid = (n) => (n.state === 'unreachable' ? 'unknown' : '–');
  const timed = (n, what, ms) => { const span = make('span'); span.dataset[what] = ms; return span; };
  const rows = nodes.map((n) => [
    make('span', 'name', n.name), make('span', n.state, dot(n.state), ` ${n.state}`), timed(n, 'since', n.since_ms), n.version ?? unsaid(n), n.role ?? unsaid(n),
    n.state === 'quarantined' ? timed(n, 'wait', n.wait_ms) : '–',
    n.last_error ? make('span', '', `${n.last_error}, `, timed(n, 'since', n.last_error_ms), ' ago') : 'none',
  ]);
  return make('table', 'node-table',
    make('thead', '', make('tr', '', ...columns.map((c) => Object.assign(make('th', '', c), { scope: 'col' })))),
    make('tbody', '', ...rows.map((cells) => make('tr', '', ...cells.map((cell, i) => {
      const td = make('td', '', String(cell?.nodeType ? '' : cell), cell?.nodeType ? cell : null);
      td.dataset.label = columns[i];
      return td;
    })))));
}

// guard is the state of the storage of guarded records, where the server has one.
function guard(live) {
  const state = live.nodes.ready?.guard;
  if (!state) return [];
  const since = make('span');
  since.dataset.since = state.since_ms;
  return [make('h2', '', 'Guard'), make('p', state.ready ? '' : 'notice', state.ready ? 'The storage of guarded records is ready, for ' : `No guarded record can be read or written; locks work. ${guardProblem(live)} For `, since, '.')];
}
