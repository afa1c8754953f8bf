// Breaking locks: one or several, with one confirmation.
import { call, Refusal } from './api.js';
import { $, holderOf, make, name, put, say } from './words.js';

const locks = (n) => (n === 1 ? 'this lock' : `${n} locks`);

export class Breaking {
  #live;
  #doomed = []; // { resource, holder, token, problem }: the leases that the dialog is about
  #done;
  #may = true; // the server is heard
  #running = false;

  // done(resources) is called when the dialog closes, with those that are broken.
  constructor(live, done) {
    this.#live = live;
    this.#done = done;
    $('break-cancel').addEventListener('click', () => $('break-dialog').close());
    $('break-confirm').addEventListener('click', () => this.#run());
    $('break-dialog').addEventListener('close', () => this.#close());
  }

  #broken = [];

  ask(resources) {
    this.#broken = [];
    this.#doomed = resources.map((r) => this.#live.locks.get(r)).filter(Boolean).map(({ resource, holder, token }) => ({ resource, holder, token }));
    if (!this.#doomed.length) return;
    $('break-problem').hidden = true;
    this.#draw();
    $('break-dialog').showModal();
    $('break-cancel').focus();
  }

  // allow lets the dialog break locks, or not while nothing comes from the server.
  allow(may) {
    if (may === this.#may) return;
    this.#may = may;
    put($('break-problem'), 'Nothing comes from the server, so that no lock can be broken now.');
    $('break-problem').hidden = may;
    this.#busy(this.#running);
  }

  #busy(running) {
    this.#running = running;
    $('break-confirm').disabled = running || !this.#may;
  }

  #draw() {
    const n = this.#doomed.length;
    put($('break-title'), `Break ${locks(n)}?`);
    put($('break-confirm'), n === 1 ? 'Break the lock' : `Break ${n} locks`);
    $('doomed').replaceChildren(...this.#doomed.map((d) => make('li', '', name(d.resource, 'b'), make('span', '', 'held by ', holderOf(d.holder), ` under token ${d.token}`),
      d.problem ? make('span', 'bad', d.problem) : null)));
  }

  async #run() {
    this.#busy(true);
    for (const lock of [...this.#doomed]) {
      try {
        await this.#breakOne(lock);
        this.#broken.push(lock.resource);
        this.#doomed = this.#doomed.filter((d) => d !== lock);
      } catch (error) {
        if (error.status === undefined) throw error;
        lock.problem = error.message;
      }
    }
    this.#busy(false);
    if (!this.#doomed.length) {
      $('break-dialog').close();
      return;
    }
    this.#draw();
    put($('break-problem'), `${this.#doomed.length === 1 ? 'This lock is' : `${this.#doomed.length} locks are`} not broken${this.#broken.length ? `; ${this.#broken.length} are` : ''}. The reason is above.`);
    $('break-problem').hidden = false;
    $('break-cancel').focus();
  }

  // breakOne breaks the lease that the user saw, and no later one.
  async #breakOne(lock) {
    const body = JSON.stringify({ resource: lock.resource, fencing_token: lock.token });
    try {
      await call('POST', 'breaks', { headers: { 'Content-Type': 'application/json' }, body });
    } catch (error) {
      if (error.status === 0) throw new Refusal(0, { detail: 'The server does not respond, so that it is not known whether the lock is broken.' });
      const kind = String(error.problem?.type).replace('/problems/', '');
      if (kind === 'lock-not-held') throw new Refusal(404, { detail: 'No lease holds it any more: there is nothing to break.' });
      if (kind !== 'other-lease') throw error;
      Object.assign(lock, { holder: error.problem.holder, token: error.problem.fencing_token });
      throw new Refusal(412, { detail: 'Another lease holds it by now. Look again before you break that one.' });
    }
  }

  #close() {
    if (this.#broken.length) say(this.#broken.length === 1 ? `${this.#broken[0]} is broken` : `${this.#broken.length} locks are broken`);
    this.#done(this.#broken);
  }
}
