// The client against a small service in this process. clients/conformance tests the rules of the protocol.
import assert from 'node:assert/strict';
import { getEventListeners } from 'node:events';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';

import { Client, Closed, Denied, FencelockError, Held, LeaseLost, OtherLease, Refused, StaleToken, Unavailable } from '../dist/index.mjs';
import { Service } from './service.mjs';

async function with_(use, options) {
  const service = await new Service().start();
  const locks = new Client(service.url, { timeout: 30_000, patience: 30_000, ...options }); // long, for a busy machine
  try {
    await use(locks, service);
  } finally {
    await locks.close();
    await service.stop();
  }
}

const it = (name, use, options) => test(name, () => with_(use, options));
const EXTEND = 'POST /leases/current/extend';

it('work runs under a lease, and its value comes back', async (locks, service) => {
  const value = await locks.do('orders/42', async (lease, signal) => {
    assert.equal(lease.resource, 'orders/42');
    assert.equal(lease.token, 1);
    assert.equal(lease.ttl, 20_000);
    const before = performance.now();
    const left = lease.validity; // until is on the same clock
    assert.ok(left > 10_000 && left <= lease.until - before && left >= lease.until - performance.now());
    assert.ok(!lease.lost && !signal.aborted);
    return 'done';
  }, { ttl: 20_000, holder: 'me', metadata: { a: 1 } });
  assert.equal(value, 'done');
  assert.deepEqual(service.trace, ['POST /locks', 'DELETE /leases/current']);
  assert.deepEqual(service.calls[0].body, { resource: 'orders/42', ttl_ms: 20_000, holder: 'me', metadata: { a: 1 }, wait_ms: 600_000 });
  assert.equal(service.calls[1].headers['fencelock-lease'], 'secret-id');
});

for (const batchAfter of [-1, 0]) {
  it(`validity counts from when the request was sent, batchAfter ${batchAfter}`, async (locks, service) => {
    for (const call of ['POST /locks', EXTEND, 'POST /locks/batch']) service.delay[call] = 50; // the lease already runs during the delay
    const sentBefore = (lease, ttl) => assert.ok(lease.until - (ttl - 2) <= service.calls.at(-1).at, `${lease.until} with a request that came at ${service.calls.at(-1).at}`);
    const lease = await locks.acquire('a', { ttl: 20_000, wait: 0 });
    sentBefore(lease, 20_000);
    await lease.extend();
    sentBefore(lease, 30_000);
    assert.equal(service.calls.at(-1).call, batchAfter < 0 ? EXTEND : 'POST /locks/batch');
  }, { batchAfter });
}

it('the loss shows in every way', async (locks, service) => {
  service.refuse[EXTEND] = [404, 'lease-not-held'];
  let notified;
  await assert.rejects(locks.do('a', async (lease, signal) => {
    await new Promise((lost) => signal.addEventListener('abort', lost));
    assert.ok(signal.reason instanceof LeaseLost && lease.signal.reason instanceof LeaseLost);
    assert.ok(lease.lost && lease.validity === 0);
    assert.throws(() => lease.check(), LeaseLost);
    notified = true;
  }, { ttl: 3000 }), LeaseLost);
  assert.ok(notified);
});

it('the largest margin leaves time to extend', async (locks) => {
  await locks.do('a', (lease, signal) => sleep(3500, undefined, { signal }), { ttl: 6000, margin: 60000 });
});

it('a lease that nobody extends is lost a margin before its end', async (locks, service) => {
  service.delay[EXTEND] = 60_000;
  const seen = [];
  await assert.rejects(locks.do('a', async (lease, signal) => {
    signal.addEventListener('abort', () => seen.push('lost', performance.now() >= lease.until - 3001));
    setTimeout(() => seen.push('half a margin before the end'), lease.until - 1500 - performance.now()); // timers fire in order, however late
    await sleep(60_000, undefined, { signal }).catch(() => {});
    await sleep(Math.max(0, lease.until - performance.now()));
  }, { ttl: 6000, margin: 3000 }), /not extended in time/);
  assert.deepEqual(seen, ['lost', true, 'half a margin before the end']);
});

it('do and elect call onLost once, after the signal, and what it throws changes nothing', async (locks, service) => {
  service.refuse[EXTEND] = [404, 'lease-not-held'];
  for (const call of ['do', 'elect']) {
    const told = [];
    let terms = 0;
    const work = async (lease, signal) => {
      if (++terms === 2) return; // this process leads for the second time
      await sleep(60_000, undefined, { signal }).catch(() => {});
    };
    const onLost = (loss) => {
      told.push(loss);
      throw new RangeError('of the callback');
    };
    const done = locks[call](call, work, { ttl: 900, onLost });
    if (call === 'do') await assert.rejects(done, LeaseLost);
    else await done;
    assert.equal(told.length, 1, call);
    assert.ok(told[0] instanceof LeaseLost);
  }
});

test('a callback that raises, hangs, or returns a promise that rejects, ends neither renewal nor the process', async () => {
  const ways = { throws: () => { throw new RangeError('of the callback'); }, rejects: async () => { throw new RangeError('of the callback'); }, hangs: () => new Promise(() => {}) };
  const kept = (times, ttl, fail) => with_(async (_, service) => {
    let calls = -Infinity; // how often the credential is asked for while the work runs
    let told = 0;
    const locks = new Client(service.url, { bearer: () => (++calls >= 1 && calls <= times ? fail() : 'token'), onRetry: fail, timeout: 1000 });
    const end = new AbortController();
    const work = locks.do('a', (lease, signal) => {
      calls = 0;
      service.arrived = () => service.trace.includes(EXTEND) && end.abort();
      return sleep(60_000, undefined, { signal: AbortSignal.any([signal, end.signal]) }).catch(() => {});
    }, { ttl, onLost: () => { told++; return fail(); } });
    if (times === 1) await work;
    else await assert.rejects(work, LeaseLost);
    assert.deepEqual([service.trace.includes(EXTEND), told], times === 1 ? [true, 0] : [false, 1]);
  });
  await Promise.all(Object.values(ways).flatMap((fail) => [kept(1, 15_000, fail), kept(Infinity, 3000, fail)]));
});

it('the signals compare the clock when they are read', async (locks, service) => {
  service.delay[EXTEND] = 60_000;
  const told = [];
  const blocked = async (lease, signal) => {
    const mine = lease.signal;
    assert.ok(!signal.aborted && !mine.aborted && signal.reason === undefined);
    signal.addEventListener('abort', () => told.push('signal'));
    while (performance.now() < lease.until); // blocks the event loop, so that no timer fires
    assert.ok(mine.aborted && mine.reason instanceof LeaseLost);
    assert.throws(() => signal.throwIfAborted(), LeaseLost);
    assert.ok(signal.aborted && signal.reason instanceof LeaseLost && signal instanceof AbortSignal);
    assert.throws(() => lease.check(), LeaseLost);
  };
  await assert.rejects(locks.do('a', blocked, { ttl: 1000, onLost: (loss) => told.push(loss instanceof LeaseLost) }), LeaseLost);
  assert.deepEqual(told, ['signal', true]); // both were told, although the work ended before a timer could fire
  const { signal } = await locks.do('a', (lease) => lease, { ttl: 60_000 });
  assert.ok(!signal.aborted); // a release is not a loss
});

it('close ends soon after the work, though no server answers', async (locks, service) => {
  service.delay['DELETE /leases/current'] = 3_600_000;
  await new Promise((began) => {
    locks.do('a', (lease, signal) => { began(); return sleep(3_600_000, undefined, { signal }); }).catch(() => {});
  });
  await locks.close();
  assert.equal(service.trace.at(-1), 'DELETE /leases/current');
});

it('an error of the work comes first, unless it only says that the signal was aborted', async (locks, service) => {
  service.refuse[EXTEND] = [404, 'lease-not-held'];
  const until = (signal) => new Promise((lost) => signal.addEventListener('abort', lost));
  await assert.rejects(locks.do('a', async (lease, signal) => { await until(signal); throw new RangeError('mine'); }, { ttl: 900 }), /mine/);
  await assert.rejects(locks.do('a', (lease, signal) => sleep(2000, undefined, { signal }), { ttl: 900 }), LeaseLost);
  await assert.rejects(locks.do('a', async (lease, signal) => { await until(signal); signal.throwIfAborted(); }, { ttl: 900 }), LeaseLost);
  delete service.refuse[EXTEND];
  const abort = new DOMException('mine', 'AbortError');
  await assert.rejects(locks.do('a', () => { throw abort; }), (error) => error === abort);
});

it('a do nests by its signal', async (locks, service) => {
  service.exclusive = true;
  await locks.do('a', async (outer, signal) => {
    const inner = await locks.do('a', async (lease, innerSignal) => {
      assert.equal(lease, outer);
      return locks.do(['a'], async () => 'joined', { signal: innerSignal });
    }, { signal });
    assert.equal(inner, 'joined');
    await assert.rejects(locks.do('a', () => assert.fail('two at once'), { wait: 0 }), Held); // without the signal it does not join
    await assert.rejects(locks.do(['a', 'b'], () => assert.fail('another lock'), { wait: 0, signal }), Held);
  });
  assert.equal(service.trace.filter((c) => c.startsWith('DELETE')).length, 1);
});

it('waiting for oneself is found at once', async (locks, service) => {
  service.exclusive = true;
  const other = new Client(service.url);
  await locks.do(['a', 'b'], async (outer, signal) => {
    const any = AbortSignal.any([signal, new AbortController().signal]);
    const calls = {
      'a part, with the signal': () => locks.do('a', () => assert.fail('two at once'), { signal }),
      'a part, without it': () => locks.do('b', () => assert.fail('two at once')),
      'the same, without the signal': () => locks.do(['b', 'a'], () => assert.fail('two at once'), { wait: 1000 }),
      'another client': () => other.do(['a', 'b'], () => assert.fail('two at once'), { signal: any }),
      'acquire': () => locks.acquire('a'),
      'lock, in a task of the work': async () => (await sleep(1), locks.lock(['b', 'c'])),
    };
    for (const [name, call] of Object.entries(calls)) {
      await assert.rejects(call(), (e) => e instanceof Refused && e.kind === 'would-wait-for-itself' && /the work around it holds a, b/.test(e.message), name);
    }
    assert.deepEqual(service.trace, ['POST /locks']);
    await assert.rejects(locks.acquire('a', { wait: 0 }), Held); // it would not wait, so the service answers
    const joined = await locks.do(['b', 'a'], (lease, inner) => (assert.equal(lease, outer), locks.do(['a', 'b'], () => inner, { signal: inner })), { signal: any });
    assert.ok(!joined.aborted);
  });
  await locks.do('a', () => {}); // the work around it has ended
});

it('the signal of a lease tells who would wait for itself', async (locks, service) => {
  service.exclusive = true;
  const other = new Client(service.url);
  const { signal } = await locks.lock('a');
  const refused = (e) => e instanceof Refused && e.kind === 'would-wait-for-itself' && /the lease whose signal it got holds a; .* take it by do/.test(e.message);
  await assert.rejects(locks.lock('a', { signal }), refused);
  await assert.rejects(locks.acquire(['b', 'a'], { signal, wait: 1000 }), refused);
  await assert.rejects(other.do('a', () => assert.fail('two at once'), { signal }), refused);
  assert.deepEqual(service.trace, ['POST /locks']);
  await locks.do('b', (lease) => locks.do('b', (same) => assert.equal(same, lease), { signal: lease.signal })); // with the signal of a lease that do took, a call joins
  const again = await locks.lock('c', { signal }); // the lease of 'a' does not hold it
  await again.release();
  await locks.lock('c', { signal: again.signal, wait: 0 }); // that lease was released
});

it('who joins with a signal made of the work\'s is told by both', async (locks) => {
  const mine = new AbortController();
  await locks.do('a', async (lease, signal) => {
    await assert.rejects(locks.do('a', async (same, inner) => { mine.abort(new RangeError('mine')); inner.throwIfAborted(); }, { signal: AbortSignal.any([signal, mine.signal]) }), RangeError);
    assert.ok(!signal.aborted && !lease.lost);
  });
});

it('the lease lasts until the last nested do has returned, and none joins after that', async (locks, service) => {
  let inner;
  let seen;
  await locks.do('a', (lease, signal) => {
    seen = signal;
    inner = locks.do('a', async () => { await sleep(150); assert.ok(!lease.lost); }, { signal });
  });
  assert.equal(service.trace.length, 1);
  await inner;
  assert.equal(service.trace.length, 2);
  await locks.do('a', () => {}, { signal: seen });
  assert.deepEqual(service.trace.slice(2), ['POST /locks', 'DELETE /leases/current']);
});

it('a nested do does not run under a lost lease', async (locks, service) => {
  service.refuse[EXTEND] = [404, 'lease-not-held'];
  await assert.rejects(locks.do('a', async (lease, signal) => {
    await sleep(2000, undefined, { signal }).catch(() => {});
    await locks.do('a', () => assert.fail('it ran'), { signal });
  }, { ttl: 900 }), LeaseLost);
});

it("the caller's signal ends the wait, and the request is given up", async (locks, service) => {
  service.delay['POST /locks'] = 300;
  const stop = new AbortController();
  service.arrived = () => stop.abort(new RangeError('enough'));
  await assert.rejects(locks.do('a', () => assert.fail('it ran'), { signal: stop.signal }), RangeError);
  service.delay = {};
  await locks.close();
  assert.deepEqual(service.trace, ['POST /locks', 'POST /cancel']);
  assert.equal(service.calls[0].headers['idempotency-key'], service.calls[1].headers['idempotency-key']);
});

it("the caller's signal is the work's, too, and the lease is released when that has ended", async (locks, service) => {
  const controller = new AbortController();
  const reason = new Error('mine');
  await assert.rejects(locks.do('a', async (lease, signal) => {
    controller.abort(reason);
    assert.equal(signal.reason, reason);
    await sleep(30);
    assert.equal(service.trace.length, 1);
    throw signal.reason;
  }, { signal: controller.signal }), (error) => error === reason);
  assert.equal(service.trace.at(-1), 'DELETE /leases/current');
  await assert.rejects(locks.acquire('a', { signal: controller.signal }), (error) => error === reason);
  assert.equal(service.trace.length, 2);
});

it('nothing is left at a signal', async (locks) => {
  const { signal } = new AbortController();
  for (let i = 0; i < 20; i++) await locks.do('a', () => {}, { signal });
  assert.equal(getEventListeners(signal, 'abort').length, 0);
});

it('await using releases the lease, and rejects with its loss', async (locks, service) => {
  const lease = await locks.lock('a', { ttl: 6000 });
  await new Promise((extended) => (service.arrived = () => service.trace.includes(EXTEND) && extended()));
  assert.ok(!lease.lost);
  await lease[Symbol.asyncDispose]();
  assert.equal(service.trace.at(-1), 'DELETE /leases/current');
  service.refuse[EXTEND] = [404, 'lease-not-held'];
  const second = await locks.lock('a', { ttl: 900 });
  await new Promise((aborted) => second.signal.addEventListener('abort', aborted));
  await assert.rejects(second[Symbol.asyncDispose](), LeaseLost);
});

it('a lease that was released in the work is not released again', async (locks, service) => {
  await locks.do('a', (lease) => lease.release());
  assert.deepEqual(service.trace, ['POST /locks', 'DELETE /leases/current']);
});

it('a lease by hand', async (locks, service) => {
  const lease = await locks.acquire('a', { ttl: 6000, wait: 0 });
  await sleep(2500); // a third of its TTL has passed
  assert.deepEqual(service.trace, ['POST /locks']);
  await lease.extend();
  assert.ok(lease.validity > 500);
  await lease.release();
  assert.ok(lease.lost);
  service.refuse['DELETE /leases/current'] = [404, 'lease-not-held'];
  await assert.rejects(lease.release(), LeaseLost);
  service.refuse['DELETE /leases/current'] = [503, 'no-quorum'];
  await assert.rejects(lease.release(), Unavailable);
}, { patience: 1000 });

it('several resources', async (locks, service) => {
  await locks.do(['b', 'a'], (lease) => {
    assert.equal(lease.resource, 'b, a');
    assert.deepEqual(lease.parts.map((p) => [p.resource, p.token]), [['b', 1], ['a', 1]]);
    assert.throws(() => lease.token, /see parts/);
  });
  assert.deepEqual(service.calls[0].body.resources, ['b', 'a']);
});

it('refusals', async (locks, service) => {
  const refused = (status, kind, by = locks) => { service.refuse['POST /locks'] = [status, kind]; return by.acquire('a', { wait: 0 }); };
  await assert.rejects(refused(409, 'lock-held'), (e) => e instanceof Held && e.holder === 'other' && e.remaining === 7 && e.kind === 'lock-held' && e.status === 409);
  await assert.rejects(refused(403, 'forbidden'), Denied);
  await assert.rejects(refused(400, 'invalid-request'), (e) => e instanceof Refused && e.name === 'Refused' && e instanceof FencelockError);
  await assert.rejects(refused(503, 'no-quorum', new Client(service.url, { patience: 300 })), (e) => e instanceof Unavailable && /acquire a: No \(503\): the test says so/.test(e.message));
  service.refuse = {};
  service.answers['GET /locks/a%2Fb%20%C3%A9'] = { resource: 'a/b é', held: false, waiters: 0, queue: [] };
  assert.equal((await locks.inspect('a/b é')).held, false);
  assert.equal(service.calls.find((c) => c.call.startsWith('GET')).headers['fencelock-resource'], 'a%2Fb%20%C3%A9');
  assert.throws(() => new Client('ftp://x'), TypeError);
  assert.throws(() => new Client('http://user:secret@x'), (e) => e instanceof TypeError && !e.message.includes('secret'));
  await assert.rejects(locks.acquire('\ud800'), TypeError);
  await assert.rejects(locks.acquire([]), TypeError);
});

it('retries are observed', async () => {
  const seen = [];
  await with_(async (locks, service) => {
    service.refuse['POST /locks'] = [503, 'no-quorum'];
    service.arrived = () => { if (service.calls.length > 2) service.refuse = {}; };
    await locks.acquire('a', { wait: 0 });
    assert.equal(seen.length, 2);
    assert.ok(seen[0].error instanceof Unavailable && seen[0].tries === 1 && seen[0].pause > 0 && seen[1].failing > 0);
  }, { onRetry: (retry) => seen.push(retry) });
});

it('lists, history, and a break', async (locks, service) => {
  service.answers['GET /locks?prefix=a%2F&limit=1000'] = { locks: [{ resource: 'a/1' }, { resource: 'a/2' }], next_cursor: 'c 1' };
  service.answers['GET /locks?prefix=a%2F&limit=1000&cursor=c+1'] = { locks: [{ resource: 'a/3' }] };
  const found = [];
  for await (const lock of locks.list('a/')) found.push(lock.resource);
  assert.deepEqual(found, ['a/1', 'a/2', 'a/3']);
  service.answers['GET /history?resource=a&limit=1000'] = { resource: 'a', attempts: [{ fencing_token: 3, highest_token: 4, kind: 'write', accepted: false, version: 1, at: '2026-03-01T12:00:00Z' }] };
  for await (const attempt of locks.history('a')) found.push(attempt);
  assert.deepEqual(found.at(-1), { token: 3, highest: 4, kind: 'write', accepted: false, version: 1, at: new Date('2026-03-01T12:00:00Z') });
  service.answers['GET /guarded?prefix=a%2F&limit=1000'] = { records: [{ resource: 'a/1', highest_token: 7, version: 2 }] };
  for await (const record of locks.records('a/')) found.push(record);
  assert.deepEqual(found.at(-1), { resource: 'a/1', highestToken: 7, value: null, version: 2 });
  await locks.breakLock('a', 7);
  assert.equal(service.trace.at(-1), 'POST /breaks');
  service.refuse['POST /breaks'] = [404, 'lock-not-held'];
  await assert.rejects(locks.breakLock('a', 7), (e) => e instanceof Refused && e.kind === 'lock-not-held');
  const lease = await locks.lease('secret-id');
  assert.equal(lease.resource, 'r');
});

it('a break that is repeated is done if its lease is gone', async (locks, service) => {
  for (const gone of [[404, 'lock-not-held'], [412, 'other-lease', { fencing_token: 8 }]]) {
    service.calls = [];
    service.refuse['POST /breaks'] = [503, 'no-quorum'];
    service.arrived = () => { if (service.calls.length > 1) service.refuse['POST /breaks'] = gone; };
    await locks.breakLock('a', 7);
    assert.deepEqual(service.calls.map((c) => c.body), [{ resource: 'a', fencing_token: 7 }, { resource: 'a', fencing_token: 7 }]);
  }
  service.arrived = () => {};
  const other = (e) => e instanceof OtherLease && e.token === 8 && e.holder === 'other';
  await assert.rejects(locks.breakLock('a', 7), other); // no earlier try can have done it
});

it('a break of any lease is not sent again once it may have been done', async (locks, service) => {
  service.refuse['POST /breaks'] = [503, 'no-quorum'];
  await assert.rejects(locks.breakAny('a'), Unavailable);
  assert.deepEqual(service.calls.map((c) => c.body), [{ resource: 'a', any: true }]);
});

it('no secret is shown', async (locks, service) => {
  const seen = [];
  const lease = await locks.acquire(['a', 'b']);
  assert.deepEqual([lease.id, lease.parts[0].proof], ['secret-id', 'secret-proof']);
  for (const each of [lease, lease.parts, locks]) seen.push(inspect(each, { depth: 9 }), JSON.stringify(each), String(each));
  service.refuse[EXTEND] = [400, 'invalid-request'];
  await assert.rejects(lease.extend(), (error) => seen.push(inspect(error, { showHidden: true })) > 0);
  for (const bearer of ['secret-bearer\r\nx: y', 'secret-bearér', ' ']) {
    await assert.rejects(new Client(service.url, { bearer }).acquire('a'), (error) => seen.push(inspect(error)) > 0 && error.name === 'TypeError');
  }
  for (const text of seen) assert.ok(!/secret/.test(text), text);
}, { bearer: 'secret-bearer' });

it('a bearer token is asked for each request', async (locks, service) => {
  await locks.do('a', () => {});
  assert.deepEqual(service.calls.map((c) => c.headers.authorization), ['Bearer token-1', 'Bearer token-2']);
}, { bearer: (() => { let n = 0; return async () => `token-${++n}\n`; })() });

it('close ends waits and work, and waits for them', async (locks, service) => {
  service.exclusive = true;
  let began = false;
  let ended = false;
  const work = locks.do('a', async (lease, signal) => {
    began = true;
    await new Promise((aborted) => signal.addEventListener('abort', aborted));
    assert.ok(signal.reason instanceof Closed);
    await sleep(50);
    ended = true;
  });
  while (!began) await sleep(1);
  const wait = assert.rejects(locks.do('a', () => assert.fail('it ran')), Closed);
  while (service.trace.length < 2) await sleep(1);
  await locks.close();
  assert.ok(ended);
  assert.equal(service.trace.at(-1), 'DELETE /leases/current');
  await Promise.all([work, wait]);
  await assert.rejects(locks.do('a', () => {}), Closed);
  await locks.close();
});

it('who returns has resigned', async (locks, service) => {
  assert.equal(await locks.elect('r', (lease) => lease.token), 1);
  await assert.rejects(locks.elect('r', () => Promise.reject(new RangeError('lead failed'))), RangeError);
  assert.deepEqual(service.trace, ['POST /locks', 'DELETE /leases/current', 'POST /locks', 'DELETE /leases/current']);
});

it('a lost leader stands again', async (locks, service) => {
  const tokens = [];
  const lead = async (lease, signal) => {
    tokens.push(lease.token);
    if (tokens.length === 3) return 'resigned';
    service.refuse[EXTEND] = [404, 'lease-not-held'];
    await new Promise((lost) => signal.addEventListener('abort', lost));
    service.refuse = {};
    if (tokens.length === 2) throw new RangeError('the loss is behind it');
  };
  assert.equal(await locks.elect('r', lead, { ttl: 300 }), 'resigned');
  assert.equal(tokens.length, 3);
  assert.deepEqual(tokens, [...new Set(tokens)].sort((a, b) => a - b)); // each term had a later lease; a busy machine gets some leases that have expired
});

it('candidates keep waiting through an outage', async (locks, service) => {
  service.refuse['POST /locks'] = [503, 'no-quorum'];
  service.arrived = () => { if (service.calls.length > 3) service.refuse = {}; };
  assert.equal(await locks.elect('r', () => 'led'), 'led'); // it may lead under a lease that an earlier try got although it was refused
  assert.ok(service.calls.length > 3);
}, { patience: 0 });

it('what no repetition mends ends a candidacy', async (locks, service) => {
  service.refuse['POST /locks'] = [403, 'forbidden'];
  await assert.rejects(locks.elect('r', () => assert.fail('it led')), Denied);
  service.refuse = {};
  await assert.rejects(locks.elect('r', () => Promise.reject(new Unavailable('another service'))), Unavailable); // an error of the work
  await assert.rejects(locks.elect('r', () => Promise.reject(new LeaseLost('of another resource'))), LeaseLost);
  const stop = new AbortController();
  const candidate = locks.elect('r', (_, signal) => {
    setTimeout(() => stop.abort(new RangeError('enough')));
    return sleep(5000, undefined, { signal });
  }, { signal: stop.signal });
  await assert.rejects(candidate, { name: 'AbortError' });
  assert.equal(service.trace.at(-1), 'DELETE /leases/current');
});

it('a watch tells changes', async (locks, service) => {
  const FREE = { resource: 'r', held: false };
  const held = (token) => ({ resource: 'r', held: true, fencing_token: token });
  // A watch does not report an earlier lease, which a minority of nodes may still show (6 after 7), or a state that has not changed.
  const looks = [FREE, FREE, held(7), held(7), held(6), undefined, undefined, held(7), held(8), FREE];
  const want = [FREE, held(7), undefined, held(7), held(8), FREE];
  const refused = [503, 'no-quorum'];
  const told = [];
  const feed = () => {
    const look = looks.shift();
    service.refuse = look ? {} : { 'GET /locks/r': refused };
    service.answers = { 'GET /locks/r': look };
  };
  service.arrived = feed;
  service.events = true;
  const begun = performance.now();
  for await (const lock of locks.watch('r')) {
    told.push(lock && lock.token);
    if (told.length === want.length) break;
  }
  assert.deepEqual(told, want.map((lock) => lock && (lock.fencing_token ?? 0)));
  assert.ok(performance.now() - begun < 45_000); // events woke it: without them it looks only every ten seconds
  await service.quiet(); // the end of the loop closes the stream
}, { patience: 0 });

it('a watch without events looks every second', async (locks, service) => {
  service.answers['GET /locks/r'] = { resource: 'r', held: false };
  for await (const lock of locks.watch('r')) {
    if (lock.held) break;
    service.answers['GET /locks/r'] = { resource: 'r', held: true, fencing_token: 1 };
  }
});

it('close ends the stream of a watch that nobody reads', async (locks, service) => {
  service.answers['GET /locks/r'] = { resource: 'r', held: false };
  service.events = true;
  const watch = locks.watch('r');
  await watch.next();
  const next = watch.next();
  service.answers['GET /locks/r'] = { resource: 'r', held: true, fencing_token: 1 };
  await next;
  await locks.close();
  await service.quiet();
  await assert.rejects(watch.next(), Closed);
});

it('what ends a watch', async (locks, service) => {
  service.answers['GET /locks/r'] = { resource: 'r', held: false };
  const stop = new AbortController();
  const watch = locks.watch('r', { signal: stop.signal });
  assert.equal((await watch.next()).value.held, false);
  setTimeout(() => stop.abort(new RangeError('enough')), 20);
  await assert.rejects(watch.next(), RangeError);
  const other = locks.watch('r');
  await other.next();
  setTimeout(() => void locks.close(), 20);
  await assert.rejects(other.next(), Closed);
  service.refuse['GET /locks/r'] = [403, 'forbidden'];
  await assert.rejects(new Client(service.url).watch('r').next(), Denied);
});

it('many calls share requests', async (locks, service) => {
  const leases = [];
  for (let n = 0; n < 150; n++) leases.push(await locks.acquire(`r${n}`, { wait: 60_000, ttl: 60_000 }));
  service.calls.length = 0;
  service.delay[EXTEND] = 20;
  await Promise.all(leases.map((lease) => lease.extend()));
  const batches = service.calls.filter((c) => c.call === 'POST /locks/batch').map((c) => c.body.operations.length);
  assert.ok(service.calls.length < 20, `${service.calls.length} requests`);
  assert.ok(Math.max(...batches) > 50 && batches.every((operations) => operations <= 128), `batches of ${batches}`);
  await Promise.all(leases.map((lease) => lease.release()));
  assert.ok(service.calls.length < 40, `${service.calls.length} requests`);
});

it('acquires in a batch have keys and outcomes of their own', async (locks, service) => {
  const leases = await Promise.all(Array.from({ length: 8 }, (_, n) => locks.acquire(`r${n}`, { wait: 0 })));
  leases.forEach((lease, n) => assert.equal(lease.resource, `r${n}`));
  assert.equal(new Set(leases.map((lease) => lease.token)).size, 8);
  assert.equal(new Set(service.inBatches.map((each) => each.key)).size, 8);
}, { batchAfter: 0 });

it('a call in a batch is refused by itself', async (locks, service) => {
  service.refuse['POST /leases/current/extend'] = [404, 'lease-not-held'];
  const lease = await locks.acquire('r', { wait: 0 });
  const [extended, acquired] = await Promise.allSettled([lease.extend(), locks.acquire('other', { wait: 0 })]);
  assert.ok(extended.reason instanceof LeaseLost);
  assert.equal(extended.reason.requestId, 'req-7');
  assert.equal(acquired.status, 'fulfilled');
  assert.equal(new Set(service.inBatches.map((each) => each.key ?? each.call)).size, 3); // distinct ones, since a busy machine repeats some
}, { batchAfter: 0 });

it('who leaves a batch is not waited for, and what it was granted is ended', async (locks, service) => {
  service.delay['POST /locks/batch'] = 20; // the response comes after the abort
  const stop = new AbortController();
  service.arrived = () => stop.abort(new RangeError('enough'));
  const other = locks.acquire('b', { wait: 0 });
  await assert.rejects(locks.acquire('a', { wait: 0, signal: stop.signal }), RangeError);
  const { token } = await other;
  await locks.close();
  const [left] = service.inBatches;
  assert.deepEqual(service.trace.filter((c) => c !== 'POST /locks/batch'), ['POST /cancel']);
  assert.equal(service.inBatches.at(-1).call, 'DELETE /leases/current');
  assert.ok(token > 0 && left.key);
}, { batchAfter: 0 });

it('a batch that all have left is aborted, and one that gathers is not sent', async (locks, service) => {
  service.delay['POST /locks/batch'] = 60_000;
  const stop = new AbortController();
  service.arrived = () => stop.abort(new RangeError('enough'));
  const both = await Promise.allSettled(['a', 'b'].map((r) => locks.acquire(r, { wait: 0, signal: stop.signal })));
  for (const { reason } of both) assert.ok(reason instanceof RangeError);
  const gone = AbortSignal.abort(new RangeError('before'));
  await assert.rejects(locks.acquire('c', { wait: 0, signal: gone }), RangeError);
  await locks.close();
  assert.equal(service.trace.filter((c) => c !== 'POST /cancel').join(), 'POST /locks/batch');
  assert.equal(new Set(service.calls.filter((c) => c.call === 'POST /cancel').map((c) => c.headers['idempotency-key'])).size, 2);
}, { batchAfter: 0 });

it('a server that refuses batches gets single requests', async (locks, service) => {
  service.refuse['POST /locks/batch'] = [404, 'not-found'];
  const leases = await Promise.all(['a', 'b', 'c'].map((r) => locks.acquire(r, { wait: 0 })));
  assert.equal(leases.length, 3);
  await leases[0].extend();
  assert.deepEqual(service.trace, ['POST /locks/batch', 'POST /locks', 'POST /locks', 'POST /locks', 'POST /leases/current/extend']);
}, { batchAfter: 0 });

it('slots nest: a slot joins by its name, and a free one is taken', async (locks, service) => {
  await locks.do('jobs', async (lease, signal) => {
    assert.deepEqual([lease.slot, lease.resource], [1, 'jobs#slot1']);
    await locks.do('jobs', (inner) => assert.equal(inner, lease), { slots: 3, signal });
    await locks.do('jobs#slot1', (inner) => assert.equal(inner, lease), { signal });
    const itself = (e) => e instanceof Refused && e.kind === 'would-wait-for-itself' && /holds jobs#slot1/.test(e.message);
    await assert.rejects(locks.do('jobs#slot1', () => assert.fail('two at once')), itself);
    await assert.rejects(locks.acquire('jobs', { slots: 1 }), itself); // it wants the only slot, which the work has
    await locks.do('jobs', async (other) => {
      assert.equal(other.slot, 2);
      await assert.rejects(locks.acquire('jobs', { slots: 2 }), itself); // the works around it have both slots
    }, { slots: 2 });
    await locks.do('jobs', (other) => assert.equal(other.resource, 'jobs'), { signal }); // the resource itself is another lock than its slots
  }, { slots: 3 });
  assert.deepEqual(service.calls.filter((c) => c.call === 'POST /locks').map((c) => c.body.slots), [3, 2, undefined]);
});

it('a timeout that ends a wait says what it waited for', async (locks, service) => {
  const timedOut = (e) => e.cause?.name === 'TimeoutError';
  const waiting = (options) => locks.acquire('a', { signal: AbortSignal.timeout(200), ...options });
  service.delay['POST /locks'] = 3_600_000; // as if the request waited in the queue
  service.answers['GET /locks/a'] = { resource: 'a', held: true, holder: 'other', fencing_token: 7, remaining_ms: 9 };
  await assert.rejects(waiting(), (e) => e instanceof Held && e.holder === 'other' && e.token === 7 && e.remaining === 9 && e.resource === 'a' && timedOut(e));
  service.refuse['GET /locks/a'] = [403, 'forbidden'];
  await assert.rejects(waiting(), (e) => e instanceof Held && e.holder === '' && timedOut(e));
  service.refuse['GET /locks/a'] = [503, 'no-quorum'];
  await assert.rejects(waiting(), (e) => e instanceof Unavailable && timedOut(e));
  service.refuse['POST /locks'] = [503, 'no-quorum'];
  service.delay = {};
  await assert.rejects(locks.do('a', () => assert.fail('it ran'), { signal: AbortSignal.timeout(2000) }), (e) => e instanceof Unavailable && e.kind === 'no-quorum' && timedOut(e));
  const before = AbortSignal.timeout(0);
  await new Promise((aborted) => before.addEventListener('abort', aborted));
  await assert.rejects(locks.acquire('a', { signal: before }), { name: 'TimeoutError' }); // nothing was sent
  assert.ok(service.trace.includes('POST /cancel'));
});

it('many at once', async (locks, service) => {
  const done = await Promise.all(Array.from({ length: 50 }, (_, i) => locks.do(`a/${i}`, () => i)));
  assert.equal(new Set(done).size, 50);
  assert.ok(service.trace.length + service.inBatches.length >= 100); // a slow machine repeats some
}, { timeout: 30_000 }); // a busy machine starts so many connections slowly

it('close releases the leases of lock, and every later call is refused', async (locks, service) => {
  const lease = await locks.lock('a', { ttl: 3000 });
  await locks.close();
  const closed = service.trace.length;
  assert.equal(service.trace.filter((c) => c === 'DELETE /leases/current').length, 1);
  assert.match(inspect(lease), /^Lease of a token 1, released$/);
  for (const call of [() => locks.acquire('a'), () => locks.lock('a'), () => locks.inspect('a'), () => locks.do('a', () => 1), () => locks.breakAny('a'), () => lease.extend()]) {
    await assert.rejects(call(), Closed);
  }
  await sleep(1500); // half a TTL: nothing keeps it alive
  assert.equal(service.trace.length, closed);
});

it('a lease shows its token and no secret', async (locks) => {
  const lease = await locks.lock(['a', 'b\u202e']);
  assert.match(inspect(lease), /^Lease of a token 1, b\\u\{202e\} token 1, valid for \d+ ms$/);
  assert.doesNotMatch(`${lease} ${inspect(lease)} ${JSON.stringify(lease)}`, /secret/);
});

it('errors are the same classes in both module systems, and name server and request', async (locks, service) => {
  const { createRequire } = await import('node:module');
  const cjs = createRequire(import.meta.url)('../dist/cjs/index.js');
  service.refuse['POST /locks'] = [409, 'lock-held'];
  const error = await locks.acquire('a', { wait: 0 }).catch((e) => e);
  assert.ok(error instanceof cjs.Held && error instanceof cjs.FencelockError && error instanceof Held && error instanceof Error);
  assert.ok(!(error instanceof cjs.LeaseLost) && !(error instanceof Refused) && !(null instanceof Held) && !(new Error() instanceof cjs.FencelockError));
  class Mine extends Held {}
  assert.ok(!(error instanceof Mine) && new Mine() instanceof Mine && new Mine() instanceof cjs.Held);
  assert.deepEqual([error.url, error.requestId, error.kind], [service.url, 'req-7', 'lock-held']);
});

it('records are read, claimed, written and deleted under a token', async (locks, service) => {
  const record = { resource: 'a/1', highest_token: 7, value: { paid: true }, version: 2 };
  for (const call of ['GET /guarded/a%2F1', 'PUT /guarded/a%2F1', 'DELETE /guarded/a%2F1', 'POST /guarded/a%2F1']) service.answers[call] = record;
  const want = { resource: 'a/1', highestToken: 7, value: { paid: true }, version: 2 };
  const lease = await locks.acquire('a/1');
  assert.deepEqual(await locks.readRecord('a/1'), want);
  assert.deepEqual(await locks.claimRecord(lease), want);
  assert.deepEqual(await locks.writeRecord(lease.parts[0], 'v'), want);
  assert.deepEqual(await locks.deleteRecord(lease), want);
  const [, read, claim, write, gone] = service.calls;
  assert.deepEqual([read.headers['fencing-token'], claim.headers['fencing-token'], write.headers['fencing-proof'], gone.headers['fencing-token']], [undefined, '1', 'secret-proof', '1']);
  assert.equal(write.body, 'v');
  service.refuse['GET /guarded/b'] = [404, 'record-not-found'];
  assert.deepEqual(await locks.readRecord('b'), { resource: 'b', highestToken: 0, value: null, version: 0 });
  service.refuse['PUT /guarded/a%2F1'] = [412, 'stale-token', { presented: 1, highest_token: 9 }];
  await assert.rejects(locks.writeRecord(lease, 1), (e) => e instanceof StaleToken && e instanceof LeaseLost && e.presented === 1 && e.highest === 9 && e.kind === 'stale-token');
  service.refuse['PUT /guarded/a%2F1'] = [503, 'guard-unavailable'];
  const before = service.trace.length;
  await assert.rejects(locks.writeRecord(lease, 1), Unavailable);
  assert.equal(service.trace.length, before + 1); // it is not sent again, because it may have been written
  await assert.rejects(locks.writeRecord(lease, undefined), { name: 'TypeError', message: /must be JSON, not undefined/ });
  await assert.rejects(locks.readRecord(42), TypeError);
});

it('a write is waited for, since it may have been done when it is given up', async (locks, service) => {
  const lease = await locks.acquire('a');
  for (const call of ['PUT /guarded/a', 'DELETE /guarded/a']) [service.answers[call], service.delay[call]] = [{ resource: 'a' }, 1500];
  await Promise.all([locks.writeRecord(lease, 1), locks.deleteRecord(lease)]);
});

it('wrong types get one clear line, and nothing is sent', async (locks, service) => {
  const wrong = [
    [{ ttl: '30' }, 'ttl must be a number of milliseconds, not string'], [{ wait: -1 }, 'wait must be 0 milliseconds or more, not -1'],
    [{ tll: 1 }, /^unknown option tll: the options are ttl/], [{ maxHold: NaN }, 'maxHold must be 0 milliseconds or more, not NaN'],
  ];
  for (const [options, message] of wrong) {
    for (const call of [() => locks.acquire('a', options), () => locks.do('a', () => 1, options)]) await assert.rejects(call(), { message });
  }
  for (const resource of [42, undefined, ['a', 42]]) await assert.rejects(locks.acquire(resource), { name: 'TypeError', message: /^a resource must be a string/ });
  assert.throws(() => new Client(undefined), { name: 'TypeError', message: 'servers must be a URL, or an array of URLs, not undefined' });
  for (const [options, message] of [[{ timeOut: 1 }, /^unknown option timeOut: the options are bearer/], [{ timeout: '5' }, /^timeout must be a number/], [{ bearer: 7 }, /^bearer must be/]]) {
    assert.throws(() => new Client(service.url, options), { message });
  }
  await assert.rejects(locks.inspect(42), TypeError);
  await assert.rejects(locks.do('a', () => {}, 5000), { message: 'options must be an object, not number' });
  assert.deepEqual(service.trace, []);
});

test('a 404 that no fencelock sent says so', async () => {
  const locks = new Client('http://locks.test', { fetch: async () => new Response('<html>', { status: 404 }) });
  await assert.rejects(locks.acquire('a'), (e) => e instanceof Refused && /the 404 did not come from fencelock/.test(e.message));
});

test('no server answers', async () => {
  const service = await new Service().start();
  await service.stop();
  const locks = new Client([service.url], { patience: 200 });
  await assert.rejects(locks.acquire('a'), (e) => e instanceof Unavailable && e.message.includes('ECONNREFUSED'));
  await locks.close();
});

test('an answer that is not the service', async () => {
  const locks = new Client('http://locks.test', { fetch: async () => new Response('<html>') });
  await assert.rejects(locks.acquire('a'), (e) => e instanceof Refused && /right/.test(e.message));
});

test('a long sleep does not end at once', async () => {
  const { sleep: napping } = await import('../dist/cjs/clock.js');
  const signal = AbortSignal.timeout(50);
  await assert.rejects(napping(2 ** 40, signal), { name: 'TimeoutError' });
  await assert.rejects(napping(0, signal), { name: 'TimeoutError' });
});

test('an answer that is too long, and a redirect, are refused', async (t) => {
  const { createServer } = await import('node:http');
  let sent = 0;
  const server = createServer((request, response) => {
    if (request.method !== 'POST') {
      response.writeHead(307, { Location: 'https://user@elsewhere.example/leases/secret' }).end();
      return;
    }
    const piece = 'x'.repeat(1 << 16);
    const more = () => {
      while (!response.destroyed && sent < 1 << 28) {
        sent += piece.length;
        if (!response.write(piece)) return void response.once('drain', more);
      }
    };
    more();
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  t.after(() => { // closes the servers even if the test fails: an open server would keep the process alive
    server.closeAllConnections();
    server.close();
  });
  const locks = new Client(`http://127.0.0.1:${server.address().port}`, { timeout: 60_000, patience: 60_000 }); // a busy machine takes long for 16 MiB
  t.after(() => locks.close());
  await assert.rejects(locks.acquire('r'), (error) => error instanceof Refused && /too long/.test(error.message));
  assert.ok(sent < 1 << 26, `${sent} bytes`);
  await assert.rejects(locks.inspect('r'), (error) => error instanceof Refused && /redirect/.test(error.message) && !/secret/.test(error.message));
});
