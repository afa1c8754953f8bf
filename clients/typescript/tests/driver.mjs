// The conformance kit's driver (clients/conformance/README.md): node driver.mjs
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import { Client, Denied, FencelockError, Held, LeaseLost, Unavailable } from '../dist/index.mjs';
import { Service } from './service.mjs';

const NAMES = [[Held, 'held'], [LeaseLost, 'lost'], [Denied, 'denied'], [Unavailable, 'unavailable'], [FencelockError, 'refused']];

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

let client;
let lease;
let raises; // which callbacks raise, from the set-up

class Raised extends Error {}

/** A callback whose calls raise as the set-up says; undefined if the set-up has nothing for this callback. */
function broken(callback, value) {
  const each = raises.find((raise) => raise.callback === callback);
  let calls = 0;
  return each && (() => {
    const n = ++calls;
    if (n >= each.from && n < each.from + (each.times || Infinity)) throw new Raised(`the ${callback}'s own error`);
    return value;
  });
}

/** A signal that gives an order up when the order says. An order may ask to give up twice: here the second abort changes nothing. */
function caller({ cancel_after_ms: after, cancel_again_ms: again, deadline_ms: deadline }) {
  if (deadline) return { signal: AbortSignal.timeout(deadline), done: () => {} };
  const controller = new AbortController();
  const timers = [after, after && again && after + again].filter(Boolean).map((ms) => setTimeout(() => controller.abort(), ms));
  return { signal: after ? controller.signal : undefined, done: () => timers.forEach(clearTimeout) };
}

/** The work of a do, or the term of a leader, as an order says. */
async function term(lease, signal, order) {
  say({ event: 'began' });
  if (order.busy_ms) {
    const end = performance.now() + order.busy_ms;
    while (performance.now() < end);
    if (signal.aborted) say({ event: 'notified' });
  } else {
    await sleep(order.work_ms, undefined, { signal }).catch(() => say({ event: 'notified' }));
  }
  say({ event: 'ended' });
}

/** Runs `call` with the options of an order. Meanwhile it gives the call up, or closes the client, if the order says so. */
async function during(order, call) {
  const { signal, done } = caller(order);
  const closing = order.close_after_ms && sleep(order.close_after_ms).then(() => client.close());
  const raise = broken('on_lost');
  const onLost = order.on_lost ? () => { say({ event: 'on_lost' }); raise?.(); } : undefined;
  try {
    return await call({ ...options(order), margin: order.margin_ms, onLost, signal });
  } catch (error) {
    if (signal?.aborted && error === signal.reason) return { result: 'cancelled' };
    throw error;
  } finally {
    done();
    await closing;
  }
}

const options = (order) => ({ ttl: order.ttl_ms, wait: order.wait_ms ?? 0, patience: order.patience_ms, slots: order.slots, minHold: order.min_hold_ms, maxHold: order.max_hold_ms, holder: order.holder });

const orders = {
  acquire(order) {
    lease = undefined;
    return during(order, async ({ margin, onLost, ...rest }) => {
      lease = await client.acquire(order.resources ?? order.resource, rest);
      return { result: 'acquired', token: lease.token, validity_ms: Math.floor(lease.validity) };
    });
  },

  async release() {
    if (!lease) return { result: 'none' };
    await lease.release();
    return { result: 'released' };
  },

  async pause(order) {
    await sleep(order.work_ms);
    return { result: 'paused' };
  },

  work(order) {
    return during(order, async (options) => {
      await client.do(order.resource, (lease, signal) => term(lease, signal, order), options);
      return { result: 'worked' };
    });
  },

  elect(order) {
    return during(order, async (options) => ({ result: await client.elect(order.resource, async (lease, signal) => {
      await term(lease, signal, order);
      return 'resigned';
    }, options) }));
  },

  async burst(order) {
    const end = sleep(order.work_ms);
    const each = (n, f) => Promise.all(Array.from({ length: n }, (_, i) => f(i)));
    const kept = await each(order.keep, (i) => client.lock(`${order.resource}/kept/${i}`, { ttl: order.ttl_ms, wait: 0 }));
    let done = 0;
    await each(order.calls, async (i) => {
      try {
        await (await client.acquire(`${order.resource}/${i}`, options(order))).release();
        done++;
      } catch (error) {
        failure(error);
      }
    });
    await end;
    const held = kept.filter((lease) => !lease.lost).length;
    await Promise.all(kept.map((lease) => lease.finish()));
    return { result: 'burst', done, kept: held };
  },

  async inside(order) {
    return client.do(order.resource, async () => {
      try {
        const inner = await client.acquire([order.resource, 'another'], { wait: order.wait_ms });
        return { result: 'acquired', token: inner.parts[0].token };
      } catch (error) {
        return failure(error);
      }
    }, { ttl: order.ttl_ms });
  },

  async beside(order) {
    return client.do(order.resource, async (outer) => {
      const task = async () => {
        await sleep(1);
        return client.do(order.resource, (lease) => (lease === outer ? { result: 'joined' } : { result: 'acquired', token: lease.token }), { wait: order.wait_ms });
      };
      try {
        return await task();
      } catch (error) {
        return failure(error);
      }
    }, { ttl: order.ttl_ms });
  },

  async close() {
    await client.close();
    return { result: 'closed' };
  },

  async fork() {
    return { result: 'unsupported' }; // Node does not fork
  },
};

function failure(error) {
  for (let cause = error; cause; cause = cause.cause) if (cause instanceof Raised) return { result: 'raised', message: error.message };
  if (error instanceof RangeError || error instanceof TypeError) return { result: 'refused', message: error.message };
  const name = NAMES.find(([kind]) => error instanceof kind);
  if (!name) throw error;
  return { result: name[1], timed_out: error.cause?.name === 'TimeoutError', message: error.message };
}

async function obey(order) {
  try {
    return await orders[order.do](order);
  } catch (error) {
    return failure(error);
  }
}

// The first requests of a process also load and compile the code that sends them. That takes a busy machine longer than the
// scenarios allow for a request, so the first ones go to a service in this process.
async function warmUp() {
  const service = await new Service().start(); // its leases never end
  const warm = new Client(service.url, { timeout: 10_000 });
  for (let n = 0; n < 3; n++) await warm.do('nothing', (granted) => granted.extend());
  await service.stop();
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.servers) {
    if (!client) await warmUp();
    raises = order.raises ?? [];
    client = new Client(order.servers, {
      timeout: order.timeout_ms, patience: order.patience_ms, batchAfter: process.argv.includes('batches') ? 0 : undefined,
      bearer: broken('credential', 'a-credential'), onRetry: broken('on_retry'),
    });
    say({ result: 'ready' });
  } else {
    say(await obey(order));
  }
}
process.exit(); // requests that were given up may still be under way
