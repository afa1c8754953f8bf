// The page of the race, drawn from its events: those of the workers in the console, or a recording of
// `fencelock demo`. It imports nothing, so that the demo's page can contain it. Times are in milliseconds.

const OTHER = { A: 'B', B: 'A' };
const DOES = { started: 'run', acquired: 'run', continued: 'run', held: 'wait', stopped: 'stopped' };
const LANES = { A: 56, B: 164 }; // the top of a worker's lane, in pixels; 272 is that of the balance

const seconds = (ms) => `${(ms / 1000).toFixed(2)} s`;
const short = (token) => (token < 100_000 ? `${token}` : `…${String(token % 1000).padStart(3, '0')}`);
const fill = (text, values) => text.replace(/\{(\w+)\}/g, (whole, name) => values[name] ?? whole);

const HTML = document.documentElement.namespaceURI;
const SVG = new DOMParser().parseFromString('<svg></svg>', 'text/html').body.firstChild.namespaceURI;

function element(space, tag, attributes, ...children) {
  const node = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const make = (tag, attributes = {}, ...children) => element(HTML, tag, attributes, ...children);
const shape = (tag, attributes = {}, ...children) => element(SVG, tag, attributes, ...children);

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// layOut makes spans and marks from what has happened until now.
function layOut(story, events, now) {
  const lanes = { A: { does: [], leases: [] }, B: { does: [], leases: [] } };
  const money = [{ from: 0, balance: story.opening, look: '' }];
  const marks = [];
  for (const e of events) {
    const { does, leases } = lanes[e.who];
    if (e.kind === 'expired') continue; // a worker does not notice that its lease expires
    const last = does.at(-1);
    if (last) last.to = e.at;
    if (DOES[e.kind] && DOES[e.kind] !== last?.look) does.push({ look: DOES[e.kind], from: e.at, to: now });
    else if (last && !['released', 'too-late'].includes(e.kind)) last.to = now;
    if (e.kind === 'acquired') leases.push({ from: e.at, to: e.at + e.left, token: e.token });
    if (e.kind === 'released') leases.at(-1).to = Math.min(leases.at(-1).to, e.at);
    if (!['read', 'wrote', 'refused'].includes(e.kind)) continue;
    const lost = e.kind === 'wrote' && e.balance !== money.at(-1).balance + story.deposits[e.who];
    marks.push({ ...e, bad: lost || e.kind === 'refused', lost });
    if (e.kind === 'wrote') money.push({ from: e.at, balance: e.balance, look: lost ? 'bad' : e.who });
  }
  return { lanes, money, marks };
}

// Picture draws a round into an SVG whose width stands for span.
class Picture {
  #span;
  #into;

  constructor(svg, span) {
    this.#span = span;
    this.#into = svg;
    svg.replaceChildren(svg.firstChild); // the pattern
  }

  #x(at) {
    return `${(100 * Math.min(at, this.#span) / this.#span).toFixed(2)}%`;
  }

  #add(tag, look, attributes, ...words) {
    const node = shape(tag, { class: look, ...attributes }, ...words);
    this.#into.append(node);
    return node;
  }

  // within draws into a group.
  #within(look, draw) {
    const outside = this.#into;
    this.#into = this.#add('g', look, {});
    draw();
    this.#into = outside;
  }

  #text(look, at, y, words, dx = 0) {
    this.#add('text', look, { x: this.#x(at), dx, y }, words);
  }

  #line(look, at, y1, y2) {
    this.#add('line', look, { x1: this.#x(at), x2: this.#x(at), y1, y2 });
  }

  #bar(look, from, to, y, height, fill = {}) {
    const width = this.#x(Math.max(Math.min(to, this.#span) - from, this.#span / 300)); // every bar is visible
    this.#add('rect', look, { x: this.#x(from), width, y, height, rx: 4, ...fill });
  }

  draw(story, signals, events, now) {
    const { lanes, money, marks } = layOut(story, events, now);
    this.#ticks();
    for (const [who, top] of Object.entries(LANES)) this.#within(who, () => this.#lane(story, signals, who, lanes[who], top, now));
    money.forEach(({ from, balance, look }, i) => {
      const to = money[i + 1]?.from ?? this.#span;
      this.#within(look, () => this.#bar('money', from, to, 272, 34));
      this.#text(`amount middle ${to - from < this.#span / 7 ? 'slim' : ''}`, (from + to) / 2, 294, balance);
    });
    const lease = lanes.A.leases[0];
    if (lease) this.#within('ends', () => {
      this.#line('', lease.to, 85, 314);
      this.#text('middle', lease.to, 328, 'A’s lease expires');
    });
    for (const mark of marks) this.#mark(story, mark);
  }

  #ticks() {
    const step = [100, 200, 500, 1000, 2000, 5000, 10_000, 20_000].find((ms) => this.#span < 6 * ms) ?? this.#span;
    for (let at = 0; at < this.#span; at += step) {
      this.#line('grid', at, 28, 306);
      this.#text(at ? 'middle' : '', at, 18, `${at / 1000} s`);
    }
  }

  #lane(story, signals, who, { does, leases }, top, now) {
    for (const { look, from, to } of does) {
      this.#bar(look, from, to, top, 24, look === 'stopped' ? { fill: `url(#${this.#into.parentNode.firstChild.id})` } : {});
      const part = (to - from) / this.#span;
      const words = story.labels[look]?.at(look === 'stopped' || part < 0.2 ? -1 : 0);
      if (words && part > 0.08) this.#text(`middle in ${look}`, (from + to) / 2, top + 16, words);
      if (look === 'stopped') this.#text('signal', from, top - 6, signals[0]);
      if (look === 'stopped' && to < now) this.#text('signal end', to, top - 6, signals[1]);
    }
    leases.forEach(({ from, to, token }, i) => {
      this.#bar('lease', from, to, top + 29, 18);
      const words = `token ${short(token)}`; // a short lease has no room for it
      if (who === 'B' && to < 0.8 * this.#span) this.#text('token', to, top + 42, words, 6);
      else if (i > 0) this.#text('token end', from, top + 42, words, -6);
      else this.#text('token', from, top + 42, words, 6);
    });
  }

  // mark draws the line from a worker to the balance, or to a cross above it.
  #mark(story, { kind, at, who, balance, bad, lost }) {
    const top = LANES[who] + 47;
    const [end, head, headAt, note] = { read: [272, '▲', top + 9, top + 17], wrote: [272, '▼', 272, top + 31], refused: [263, '✕', 272, top + 45] }[kind];
    this.#within(`${bad ? 'bad' : who} ${kind}`, () => {
      this.#line('', at, top, end);
      this.#text('middle head', at, headAt, head);
      if (bad) this.#text('note end', at, note, fill(story.labels[lost ? 'overwritten' : 'refused'][0], { other: OTHER[who] }), -8);
      else this.#text('note', at, note, `${kind === 'read' ? 'reads' : 'writes'} ${balance}`, 6);
    });
  }
}

// wentAsTold is whether a round had its steps, in their order.
function wentAsTold({ steps, want }, { events, final }) {
  const form = steps.map((step) => step.replace(/^(.*?)(\?)?$/, (_, name, maybe) => `(${name},)${maybe ?? ''}`)).join('');
  const time = (who, kind) => events.find((e) => e.who === who && e.kind === kind)?.at;
  return final === want && new RegExp(`^${form}$`).test(events.map((e) => `${e.who} ${e.kind},`).join('')) && time('B', 'wrote') < time('A', 'continued');
}

export class RaceView {
  #story;
  #says;
  #signals;
  #rounds;

  // live: the events come from threads of the page, and not from a recording.
  constructor(root, story, live) {
    this.#story = story;
    this.#says = live ? { ...story.says, ...story.thread } : story.says;
    this.#signals = live ? ['stands still', 'continues'] : ['SIGSTOP', 'SIGCONT'];
    this.button = make('button', { type: 'button', class: 'primary', id: 'run' }, live ? 'Run the race' : 'Play the recording');
    this.status = make('span', { id: 'race-status', role: 'status', class: 'hint' });
    this.problem = make('p', { id: 'race-problem', role: 'alert', class: 'notice', hidden: '' });
    const lede = story.lede.split(/(Worker [AB])/).map((part) => (/^Worker [AB]$/.test(part) ? make('b', { class: part.at(-1).toLowerCase() }, part) : part));
    this.cards = make('ul', { class: 'cards' });
    root.append(make('h1', { id: 'race-title' }, story.title), make('p', { class: 'lede' }, ...lede, ` ${live ? story.thread.note : story.recorded}`),
      make('p', {}, this.button, ' ', this.status), this.problem, this.cards);
    this.#rounds = story.rounds.map((telling, i) => this.#round(root, telling, i + 1, live));
    this.lesson = make('div', { class: 'lesson', hidden: '' }, ...story.lesson.map(([title, text]) => make('div', {}, make('h2', {}, title), make('p', {}, text))));
    root.append(this.lesson);
  }

  #round(root, telling, id, live) {
    const where = `The account is ${live ? telling.thread : telling.storage}.`;
    const round = {
      telling, id, where, sum: make('span', { class: 'sum', 'aria-hidden': 'true' }), title: make('strong'), detail: make('p'), steps: make('ol', { class: 'steps' }),
    };
    round.card = make('li', { id: `card-${id}` }, round.sum, make('div', {}, round.title, round.detail));
    round.svg = shape('svg', {}, shape('pattern', { id: `hatch-${id}`, width: 8, height: 8, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' },
      shape('rect', { class: 'hatch-back', width: 8, height: 8 }), shape('line', { class: 'hatch-line', x1: 0, y1: 0, x2: 0, y2: 8 })));
    round.details = make('details', { open: '', hidden: '' }, make('summary', {}, 'Every step'), round.steps);
    const names = [['A', 'worker A', 'its lease'], ['B', 'worker B', 'its lease'], ['', 'balance', '']]
      .map(([who, name, below]) => make('div', { class: `name ${who || 'balance'}` }, make('b', {}, name), make('small', {}, below)));
    const track = make('div', { class: 'track', role: 'img', 'aria-label': 'Timeline: what each worker did, its leases, and the balance. Every step below says the same.' }, ...names, round.svg);
    this.cards.append(round.card);
    root.append(make('section', { class: 'round', 'aria-labelledby': `round-${id}` }, make('h2', { id: `round-${id}` }, telling.title), make('p', { class: 'hint' }, where), track, round.details));
    return round;
  }

  // show draws the rounds as they are at an instant; a round without a final balance still runs. It returns
  // whether all rounds went as the story tells.
  show(rounds, now, span) {
    const good = this.#rounds.map((round, i) => this.#show(round, rounds[i], now, span));
    this.lesson.hidden = !good.every(Boolean);
    return good.every(Boolean);
  }

  #show({ telling, where, card, sum, title, detail, svg, steps, details }, played, now, span) {
    const { events, final } = played;
    new Picture(svg, span).draw(this.#story, this.#signals, events, final === undefined ? now : Math.max(...events.map((e) => e.at)));
    details.hidden = events.length === 0;
    if (steps.children.length > events.length) steps.replaceChildren();
    for (const e of events.slice(steps.children.length)) {
      steps.append(make('li', { class: `${e.who} does-${e.kind}` }, make('time', {}, seconds(e.at)), make('span', { class: 'who' }, e.who), make('span', { class: 'text' }, this.sentence(e))));
    }
    const { opening, deposits: { A, B } } = this.#story;
    const all = opening + A + B;
    const good = wentAsTold(telling, played);
    const over = final !== undefined;
    card.className = `card ${!over ? '' : good && final === all ? 'good' : 'bad'}`;
    put(sum, `${final ?? events.findLast((e) => e.kind === 'wrote')?.balance ?? opening}`);
    put(title, !over ? telling.title : good ? telling.good : telling.bad);
    put(detail, !over ? where : good ? fill(telling.because, { final, sum: `${opening} + A's ${A} + B's ${B}`, all }) : `The balance is ${final}, and ${telling.want} was expected.`);
    return good;
  }

  sentence(e) {
    const text = (e.token && this.#says[`${e.kind} guarded`]) || this.#says[e.kind];
    return fill(text, { ...e, other: OTHER[e.who], left: seconds(e.left), short: short(e.token), highest: short(e.highest) });
  }
}

// replay shows a report of `fencelock demo`, and plays it when the button is clicked.
export function replay(root, story, report) {
  const view = new RaceView(root, story, false);
  const ms = 1e-6; // of the report's nanoseconds
  const rounds = report.rounds.map(({ events, final }) => ({ final, events: events.map((e) => ({ ...e, at: (e.at ?? 0) * ms, left: (e.left ?? 0) * ms })) }));
  const length = Math.max(...rounds.map(({ events }) => events.at(-1).at));
  const until = (now) => view.show(rounds.map(({ events, final }) => (events.at(-1).at <= now ? { events, final } : { events: events.filter((e) => e.at <= now) })), now, length * 1.1);
  view.button.addEventListener('click', () => {
    view.button.disabled = true;
    put(view.status, 'playing');
    const began = performance.now();
    const timer = setInterval(() => {
      const now = performance.now() - began;
      until(now);
      if (now < length) return;
      clearInterval(timer);
      view.button.disabled = false;
      put(view.status, '');
      view.cards.scrollIntoView({ block: 'nearest' });
    }, 40);
  });
  until(Infinity);
  const facts = { Server: report.backend, Lock: report.account, Leases: `${(report.ttl * ms) / 1000} s`, When: new Date(report.begun).toUTCString(), Version: `fencelock ${report.version}` };
  root.append(make('dl', { class: 'facts' }, ...Object.entries(facts).flatMap(([name, value]) => [make('dt', {}, name), make('dd', {}, value)])));
}
