// A worker of the fault run (clients/faults): node faults.mjs SERVERS DEPOSITS TTL
import { readdirSync, readFileSync, readlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import { setTimeout as sleep } from 'node:timers/promises';
import { randomInt, randomUUID } from 'node:crypto';

import { Client, fenced, FencelockError } from '../dist/index.mjs';

const pg = createRequire(import.meta.url)('pg');
const [servers, deposits, ttl] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const ACCOUNTS = 5;
const STEP = 10; // milliseconds between two looks at the lease

const errors = {};
let ending = false;
let busy = 0; // works under way; all have to end

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const one = (...of) => of[randomInt(of.length)];

/** A time of performance.now() on the machine's monotonic clock, in seconds. */
const machine = (at) => Number(process.hrtime.bigint()) / 1e9 + (at - performance.now()) / 1000;

/** Seconds for which this thread was ready to run and got no processor. */
const delayed = () => Number(readFileSync('/proc/self/schedstat', 'utf8').split(' ')[1]) / 1e9;

/** Short pieces of time, with the seconds for which the kernel delayed this thread in each. */
const pieces = []; // [from, to, seconds of delay]
let last = [machine(performance.now()), delayed()];

function look() {
  const now = [machine(performance.now()), delayed()];
  pieces.push([last[0], now[0], now[1] - last[1]]);
  if (pieces.length > 1000) pieces.shift();
  last = now;
}
setInterval(look, STEP).unref();

/** The most seconds for which this thread can have been delayed between two times. */
function starved(from, to) {
  look();
  return pieces.reduce((sum, [a, b, delay]) => sum + Math.max(0, Math.min(delay, Math.min(b, to) - Math.max(a, from))), 0);
}

async function deposit(locks, pool) {
  const account = 1 + randomInt(ACCOUNTS);
  const id = `${process.pid}-${randomUUID()}`;
  const looks = one(true, false); // whether the work checks the clock, or relies on the signal alone
  const wait = one(0, 5000, 20_000);
  const called = performance.now();
  let over = false;
  const ended = () => { // reports how late the call for the lease ended
    if (over) return;
    over = true;
    const [due, now] = [machine(called + wait), machine(performance.now())];
    say({ call: [now - due, starved(due, now)] });
  };
  await locks.do(`accounts/${account}`, async (lease, signal) => {
    ended();
    const begin = performance.now();
    let at = 'work';
    busy++;
    try {
      // Most work is short; some outlives the TTL.
      for (let left = one(20, 100, 300, ttl * 1.5); left > 0; left -= STEP) {
        await sleep(STEP, undefined, { signal });
        if (looks) lease.check();
      }
      at = 'claim';
      await fenced(pool, lease, async (tx) => {
        at = 'select';
        const { rows } = await tx.query('SELECT balance FROM accounts WHERE id = $1', [account]);
        at = 'write';
        await tx.query('INSERT INTO effects (id, account) VALUES ($1, $2)', [id, account]);
        await tx.query('UPDATE accounts SET balance = $1 WHERE id = $2', [Number(rows[0].balance) + 1, account]);
        at = 'commit';
      });
      say({ effect: id });
    } finally {
      busy--;
      const [end, until] = [machine(performance.now()), machine(lease.until)];
      say({ work: [account, machine(begin), end, until, starved(until, end)], at });
    }
  }, { ttl, wait }).finally(ended);
}

async function worker(locks, pool) {
  while (!ending) {
    try {
      await deposit(locks, pool);
    } catch (error) {
      const known = error instanceof FencelockError || /^(57P|08|40|55P)/.test(error.code ?? '') || /terminated|ECONN/.test(error.message);
      const name = known ? error.name : `unexpected: ${error.stack}`;
      errors[name] = (errors[name] ?? 0) + 1;
      await sleep(10);
    }
  }
}

function sockets() {
  let n = 0;
  for (const fd of readdirSync('/proc/self/fd')) {
    try {
      n += readlinkSync(`/proc/self/fd/${fd}`).startsWith('socket');
    } catch {
      // The descriptor of this listing, which is closed by now.
    }
  }
  return n;
}

/** The number of resources that are alive in this process: sockets, timers, requests, …. */
const active = () => process.getActiveResourcesInfo().filter((kind) => !/TTY|Pipe|FSReq|Immediate/.test(kind)).length;

process.on('unhandledRejection', (error) => {
  errors[`unexpected: unhandled ${error?.stack}`] = 1;
});
process.stdin.on('data', () => {}).on('end', () => (ending = true));

const before = { sockets: sockets(), resources: active() };
const locks = new Client(servers, { timeout: 2000 });
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: deposits });
pool.on('error', () => {});
await Promise.all(Array.from({ length: deposits }, () => worker(locks, pool)));
await locks.close();
await pool.end();
const leaks = () => ({ sockets: sockets() - before.sockets, resources: active() - before.resources, works: busy });
// Node's fetch keeps idle connections open for some seconds.
for (let left = 100; left > 0 && Object.values(leaks()).some((n) => n > 0); left--) await sleep(100);
say({ errors, leaks: leaks() });
