// The race: two clients, each a worker thread, against the real service. The
// page draws what they tell and plays the storage that checks nothing.
import { headers } from './api.js';
import { make, put } from './words.js';

export const TTL = 1500; // ms, of A's lease
const FREEZE = 4200; // ms, from right before A's write
const SPAN = 5600; // ms, that the picture shows

export class Race {
  #$;
  #running = false;
  #why = ''; // it may not be run

  constructor($) {
    this.#$ = $;
    new Track($('track')); // the clients, before either runs
  }

  // allow lets those run it who may lock what it locks, while the guard has no problem.
  allow(may, problem) {
    if (this.#running) return;
    const why = may ? problem && `The race needs the guard. ${problem}` : 'The race takes the right acquire over console/race/, which your name does not have.';
    this.#$('run').disabled = why !== '';
    if (why || this.#why) put(this.#$('race-status'), why);
    this.#why = why;
  }

  async run() {
    if (this.#running) return;
    this.#running = true;
    const $ = this.#$;
    $('run').disabled = true;
    $('race-problem').hidden = true;
    $('steps').replaceChildren();
    $('steps-title').hidden = false;
    for (const store of ['plain', 'guard']) {
      $(`store-${store}`).className = 'store';
      $(`${store}-value`).textContent = 'empty';
      $(`${store}-verdict`).textContent = '';
    }
    $('race-status').textContent = 'running';
    const run = new Run($);
    try {
      await run.go();
      $('race-status').textContent = run.verdict();
    } catch (error) {
      $('race-problem').textContent = error.message;
      $('race-problem').hidden = false;
      $('race-status').textContent = 'did not finish';
    }
    run.end();
    $('stores').scrollIntoView({ block: 'nearest' }); // the result, on a small screen
    $('run').disabled = false;
    $('run').textContent = 'Run it again';
    this.#running = false;
  }
}

class Run {
  #$;
  #began = 0; // when the first client began
  #track;
  // One of few names: a guarded record stays, since its mark must not be forgotten while
  // a token may be in use.
  #resource = `console/race/${crypto.getRandomValues(new Uint8Array(1))[0] % 64}`;
  #pieces = {}; // that still grow, by name
  #leases = {};
  #plain = null; // the storage that checks nothing: who wrote last
  #answers = {}; // the guard's, by client
  #timer;

  constructor($) {
    this.#$ = $;
    this.#track = new Track($('track'));
  }

  async go() {
    this.#timer = setInterval(() => this.#grow(), 40);
    const a = this.#client('a');
    await a.holds;
    const b = this.#client('b');
    await Promise.all([a.done, b.done]);
  }

  end() {
    clearInterval(this.#timer);
    this.#grow();
  }

  #now() {
    return performance.timeOrigin + performance.now() - this.#began;
  }

  // client starts a worker. holds: it has its lease; done: it has ended.
  #client(name) {
    const worker = new Worker('console/race-client.js', { name: `client ${name.toUpperCase()}` });
    let held;
    const holds = new Promise((resolve) => { held = resolve; });
    const done = new Promise((resolve, reject) => {
      worker.onerror = () => reject(new Error('The browser did not let a worker thread run.'));
      worker.onmessage = ({ data }) => {
        this.#take(name, data);
        if (data.step === 'holds') held();
        if (data.step === 'failed') reject(new Error(data.text));
        if (data.step === 'done') resolve();
      };
    }).finally(() => worker.terminate());
    worker.postMessage({
      name, resource: this.#resource, headers: headers(), base: new URL('.', location.href).href,
      ttl: name === 'a' ? TTL : 10_000, wait: name === 'a' ? 0 : 30_000, freeze: name === 'a' ? FREEZE : 0,
    });
    return { holds: Promise.race([holds, done]), done };
  }

  // take shows what a client tells. at: when it did it, on the clock of both.
  #take(name, { step, at, text, token, status, highest, ends }) {
    this.#began ||= at - 150;
    const when = at - this.#began;
    const track = this.#track;
    if (text && step !== 'failed') this.#step(name, when, text, status === 412 ? 'refused' : step === 'freezes' ? 'frozen' : '');
    switch (step) {
      case 'waits':
        this.#pieces.wait = track.piece(name, 'waits', when, 'waits');
        break;
      case 'holds':
        this.#finish('wait', when);
        this.#leases[name] = track.lease(name, when, Math.min(ends - this.#began, SPAN), token);
        if (name === 'a') track.ends(ends - this.#began);
        this.#pieces[name] = track.piece(name, 'works', when);
        break;
      case 'freezes':
        this.#finish(name, when);
        this.#pieces.frozen = track.piece(name, 'frozen', when, 'frozen');
        break;
      case 'wakes':
        this.#finish('frozen', when);
        this.#pieces[name] = track.piece(name, 'works', when);
        break;
      case 'writes-plain':
        this.#writePlain(name, when, token);
        break;
      case 'wrote':
        this.#wrote(name, when, token, status, highest);
        break;
      case 'done':
        this.#finish(name, when);
        if (name === 'b') track.until(this.#leases.b, when); // it released it
        break;
    }
  }

  #finish(piece, when) {
    if (this.#pieces[piece]) this.#track.until(this.#pieces[piece], when);
    delete this.#pieces[piece];
  }

  #grow() {
    for (const piece of Object.values(this.#pieces)) this.#track.until(piece, Math.min(this.#now(), SPAN));
  }

  #writePlain(name, when, token) {
    const lost = this.#plain && this.#plain !== name;
    this.#plain = name;
    this.#$('plain-value').textContent = `written by client ${name.toUpperCase()} under token ${token}`;
    this.#track.mark('plain', name, when, '✓', lost ? 'B is lost' : `${name.toUpperCase()} writes`, lost);
    if (lost) {
      this.#$('store-plain').classList.add('lost');
      this.#$('plain-verdict').textContent = 'Client B’s write is lost, and no client notices.';
    }
  }

  #wrote(name, when, token, status, highest) {
    this.#answers[name] = status;
    if (status === 412) {
      this.#track.mark('guard', name, when, '✕', '412', true);
      this.#$('store-guard').classList.add('kept');
      this.#$('guard-verdict').textContent = `412: token ${token} is stale, ${highest} was seen. Client B’s write is kept.`;
    } else if (status === 200) {
      this.#track.mark('guard', name, when, '✓', `${name.toUpperCase()} writes: 200`, false);
      this.#$('guard-value').textContent = `written by client ${name.toUpperCase()} under token ${token}`;
    }
  }

  verdict() {
    if (this.#answers.a === 412 && this.#answers.b === 200) return 'The guard refused the stale write: 412.';
    return 'This time B did not get the lock while A was frozen. Run it again.';
  }

  #step(name, when, text, kind) {
    const who = name === 'a' ? 'Client A' : 'Client B';
    this.#$('steps').append(make('li', `${name} ${kind}`, make('time', '', `${(when / 1000).toFixed(2)} s`), make('span', 'who', who), make('span', 'text', text)));
  }
}

// Track draws the four lanes.
class Track {
  #lanes = {};

  constructor(root) {
    root.replaceChildren();
    const lanes = [['a', 'Client A', ''], ['b', 'Client B', ''], ['plain', 'Trusting', 'checks nothing'], ['guard', 'Guarded', 'checks the token']];
    lanes.forEach(([name, title, about], i) => {
      const run = make('div', 'run');
      const lane = make('div', 'lane', make('div', 'name', make('b', name, title), about ? make('small', '', about) : null), run);
      lane.style.top = `${i * 58}px`;
      root.append(lane);
      this.#lanes[name] = run;
    });
  }

  #x(when) {
    return `${(100 * Math.max(0, Math.min(when, SPAN))) / SPAN}%`;
  }

  piece(name, kind, when, text = '') {
    const piece = make('div', `piece ${kind} ${name}`, text);
    piece.from = when;
    piece.style.left = this.#x(when);
    this.#lanes[name].append(piece);
    return piece;
  }

  until(piece, when) {
    piece.style.width = `max(4px, ${this.#x(when - piece.from)})`;
  }

  lease(name, from, to, token) {
    const lease = this.piece(name, 'lease', from);
    lease.title = `lease with token ${token}`;
    this.until(lease, to);
    return lease;
  }

  ends(when) {
    for (const lane of Object.values(this.#lanes)) {
      const line = make('div', 'ends');
      line.style.left = this.#x(when);
      lane.append(line);
    }
  }

  mark(lane, name, when, sign, word, bad) {
    const late = when > SPAN * 0.7;
    const mark = make('span', `mark ${bad ? 'no' : name}`, sign);
    const text = make('span', `word ${bad ? 'no' : name} ${late ? 'before' : ''}`, word);
    mark.style.left = text.style.left = this.#x(when);
    this.#lanes[lane].append(mark, text);
  }
}
