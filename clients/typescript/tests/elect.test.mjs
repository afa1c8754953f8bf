// Elections, watches and slots on a real service: FENCELOCK_URL.
import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Client, Held } from '../dist/index.mjs';

const one = new Client(process.env.FENCELOCK_URL);
const other = new Client(process.env.FENCELOCK_URL, { holder: 'other' });

/** A promise, and what resolves it. */
function gate() {
  let open;
  const opened = new Promise((resolve) => (open = resolve));
  return { open, opened };
}

test('candidates lead one after the other, and a watch tells who', async () => {
  const resigns = gate();
  const told = [];
  const watching = (async () => {
    for await (const lock of other.watch('leader')) {
      told.push(lock && { held: lock.held, token: lock.token, holder: lock.holder });
      if (lock?.held && lock.holder === 'one') resigns.open();
      if (lock?.held && lock.holder === 'other') return;
    }
  })();
  const first = one.elect('leader', async (lease) => {
    await resigns.opened;
    return lease.token;
  }, { holder: 'one', ttl: 10_000 });
  await resigns.opened;
  const second = other.elect('leader', async (lease) => {
    await watching;
    return lease.token;
  }, { ttl: 10_000 });
  const tokens = [await first, await second];
  assert.ok(tokens[1] > tokens[0], String(tokens));
  const held = told.filter((lock) => lock?.held);
  assert.deepEqual(held.map((lock) => [lock.holder, lock.token]), [['one', tokens[0]], ['other', tokens[1]]]);
});

test('a broken leader is followed by itself', async () => {
  const tokens = [];
  await one.elect('broken', async (lease, signal) => {
    tokens.push(lease.token);
    if (tokens.length === 2) return;
    await other.breakLock('broken', lease.token);
    await new Promise((lost) => signal.addEventListener('abort', lost));
  }, { ttl: 1500 });
  assert.ok(tokens[1] > tokens[0], String(tokens));
});

test('slots are taken, each with a name and a number of its own, and no more than there are', async () => {
  const leases = [await one.acquire('jobs', { slots: 2 }), await other.acquire('jobs', { slots: 2, wait: 0 })];
  assert.deepEqual(leases.map((lease) => lease.slot).sort(), [1, 2]);
  for (const lease of leases) assert.equal(lease.resource, `jobs#slot${lease.slot}`);
  await assert.rejects(one.acquire('jobs', { slots: 2, wait: 0 }), Held);
  for (const lease of leases) await lease.release();
});
