// The race in the console: two workers, each a thread, against the real service. The page follows the steps of
// the story, as `fencelock demo` does with processes, and is the storage that checks nothing.
import { bearer } from './api.js';
import story from './race-story.js';
import { RaceView } from './race-view.js';
import { put } from './words.js';

const TTL = 1500; // ms, of A's lease
const FREEZE = 4200; // ms, from right before A's write
const SPAN = 5600; // ms, that the picture shows
const clock = () => performance.timeOrigin + performance.now();

export class Race {
  #view;
  #running = false;
  #why = ''; // it may not be run

  constructor(root) {
    this.#view = new RaceView(root, story, true);
    this.#view.show(story.rounds.map(() => ({ events: [] })), 0, SPAN);
    this.#view.button.addEventListener('click', () => this.run());
  }

  // allow lets those run it who may lock what it locks, while the guard has no problem.
  allow(may, problem) {
    if (this.#running) return;
    const why = may ? problem && `The race needs the guard. ${problem}` : 'The race takes the right acquire over console/race/, which your name does not have.';
    this.#view.button.disabled = why !== '';
    if (why || this.#why) put(this.#view.status, why);
    this.#why = why;
  }

  async run() {
    const { button, status, problem, cards } = this.#view;
    this.#running = button.disabled = problem.hidden = true;
    put(status, 'running');
    // One of few names: a guarded record stays, since its mark must not be forgotten while
    // a token may be in use.
    const resource = `console/race/${crypto.getRandomValues(new Uint8Array(1))[0] % 64}`;
    const rounds = story.rounds.map((telling) => new Round(telling, telling.guarded ? resource : `${resource}/plain`));
    let now = 0; // since the first event of a round
    const draw = () => {
      now = Math.max(...rounds.map(({ began }) => (began ? clock() - began : 0)));
      return this.#view.show(rounds, now, Math.max(SPAN, now));
    };
    const timer = setInterval(draw, 40);
    try {
      await Promise.all(rounds.map((round) => round.play()));
      put(status, draw() ? story.rounds.at(-1).good : story.again);
    } catch (error) {
      draw();
      put(problem, error.message);
      problem.hidden = false;
      put(status, 'did not finish');
    }
    clearInterval(timer);
    rounds.forEach((round) => round.end());
    cards.scrollIntoView({ block: 'nearest' }); // the result, on a small screen
    put(button, 'Run it again');
    this.#running = button.disabled = false;
  }
}

class Round {
  events = [];
  final;
  began = 0;
  #telling;
  #resource;
  #plain = story.opening; // the storage that checks nothing
  #workers = {};

  constructor(telling, resource) {
    this.#telling = telling;
    this.#resource = resource;
  }

  // play follows the steps, and returns when the workers have ended.
  async play() {
    const { guarded, steps } = this.#telling;
    if (guarded) await this.#start('opening', { opening: story.opening }).next(() => false);
    for (let i = 0; i < steps.length; i++) {
      const [who, kind] = steps[i].replace('?', '').split(' ');
      if (kind === 'started') {
        this.#start(who, { deposit: story.deposits[who], ...(who === 'A' ? { freeze: FREEZE } : {}) });
        this.#note({ who, kind, at: clock() });
      } else if (kind === 'expired') {
        const lease = this.events.find((e) => e.who === who && e.kind === 'acquired');
        const at = this.began + lease.at + lease.left;
        await new Promise((resolve) => { setTimeout(resolve, at - clock()); });
        this.#note({ who, kind, at });
      } else {
        // Steps that need not happen may be left out.
        const more = steps.slice(i, 1 + steps.findIndex((step, j) => j >= i && !step.endsWith('?'))).map((step) => step.replace('?', ''));
        const met = await this.#workers[who].next((e) => more.includes(`${who} ${e.kind}`));
        i += Math.max(0, more.indexOf(`${who} ${met?.kind}`));
      }
    }
    for (const who of ['B', 'A']) await this.#workers[who].next(() => false);
    this.final = guarded ? await this.#close() : this.#plain;
  }

  // close reads the record. It does so by a claim, with the right that the race takes anyway.
  async #close() {
    const worker = this.#start('closing', { deposit: 0, work: 0 });
    const { balance } = await worker.next((e) => e.kind === 'read');
    await worker.next(() => false);
    return balance;
  }

  end() {
    for (const { worker } of Object.values(this.#workers)) worker.terminate();
  }

  #note(e) {
    this.began ||= e.at;
    this.events.push({ ...e, at: Math.max(0, e.at - this.began) });
  }

  // start starts a worker. next takes its events up to the first that is wanted, or up to its end.
  #start(who, more) {
    const worker = new Worker('console/race-client.js', { type: 'module', name: `worker ${who}` });
    const told = [];
    let arrived = () => {};
    worker.onerror = () => worker.onmessage({ data: { failed: 'The browser did not let a worker thread run.' } });
    worker.onmessage = ({ data }) => {
      if (data.reads) worker.postMessage({ balance: this.#plain });
      else if ('writes' in data) this.#plain = data.writes;
      else told.push(data);
      arrived();
    };
    const next = async (wanted) => {
      for (;;) {
        while (told.length === 0) await new Promise((resolve) => { arrived = resolve; });
        if (told[0].failed) throw new Error(told[0].failed);
        if (told[0].done) return null;
        const e = { who, ...told.shift() };
        if (who in story.deposits) this.#note(e);
        if (wanted(e)) return e;
      }
    };
    worker.postMessage({
      who, resource: this.#resource, guarded: this.#telling.guarded, token: bearer.get(),
      ttl: who === 'A' ? TTL : 10_000, work: 300, ...more,
    });
    this.#workers[who] = { worker, next };
    return this.#workers[who];
  }
}
