// The service for the tests of an application, as one would use it.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';

import { Held, LeaseLost } from '../dist/esm/index.js';
import { Service } from '../dist/esm/testing.js';

test('an end is noticed', async (t) => {
  const service = await Service.start(t);
  const locks = service.client();
  await assert.rejects(locks.do('a', async (lease, signal) => {
    service.end('a');
    await once(signal, 'abort');
    assert.ok(lease.lost);
  }, { ttl: 3_600_000 }), LeaseLost);
  await (await locks.acquire('a', { wait: 0 })).release();
  assert.throws(() => service.end('a'), /no lease holds a/);
});

test('a lost answer is not a lost lease', async (t) => {
  const service = await Service.start(t);
  const locks = service.client();
  service.loseNextAnswer();
  const lease = await locks.acquire('a', { wait: 0 });
  service.loseNextAnswer();
  await lease.release();
  assert.equal(service.lost, 2);
  assert.equal((await locks.acquire('a', { wait: 0 })).token, 2);
});

test('what another holds is waited for', async (t) => {
  const service = await Service.start(t);
  const locks = service.client();
  const other = service.hold('a');
  await assert.rejects(locks.acquire('a', { wait: 0 }), (e) => e instanceof Held && e.holder === 'another process' && e.token === other.token);
  const waiting = locks.acquire('a');
  await service.awaitWaiters('a');
  assert.equal((await locks.inspect('a')).waiters, 1);
  other.release();
  assert.equal((await waiting).token, 2);
});

test('calls that share a request have outcomes of their own', async (t) => {
  const service = await Service.start(t);
  service.hold('b');
  const asked = [];
  const locks = service.client({ batchAfter: 0, fetch: (url, init) => (asked.push(url), fetch(url, init)) });
  const [a, b] = await Promise.allSettled(['a', 'b'].map((name) => locks.acquire(name, { wait: 0 })));
  assert.ok(b.reason instanceof Held);
  await a.value.extend();
  await a.value.release();
  assert.deepEqual(asked, Array(3).fill(`${service.url}/locks/batch`));
});
