// The conformance kit's driver (clients/conformance/README.md): node driver.mjs
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

import { Service } from '../dist/esm/testing.js';
import { Client, Denied, FencelockError, Held, LeaseLost, Unavailable } from '../dist/esm/index.js';

const NAMES = [[Held, 'held'], [LeaseLost, 'lost'], [Denied, 'denied'], [Unavailable, 'unavailable'], [FencelockError, 'refused']];

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

let client;
let lease;

const options = (order) => ({ ttl: order.ttl_ms || undefined, wait: order.wait_ms ?? 0 });

const orders = {
  async acquire(order) {
    const signal = order.cancel_after_ms ? AbortSignal.timeout(order.cancel_after_ms) : undefined;
    try {
      lease = await client.acquire(order.resource, { ...options(order), signal });
    } catch (error) {
      if (error === signal?.reason) return { result: 'cancelled' };
      throw error;
    }
    return { result: 'acquired', token: lease.token, validity_ms: Math.floor(lease.validity) };
  },

  async release() {
    await lease.release();
    return { result: 'released' };
  },

  async pause(order) {
    await sleep(order.work_ms);
    return { result: 'paused' };
  },

  async work(order) {
    const work = async (_, signal) => {
      say({ event: 'began' });
      try {
        await sleep(order.work_ms, undefined, { signal });
      } catch {
        say({ event: 'notified' });
      }
      say({ event: 'ended' });
    };
    await client.do(order.resource, work, options(order));
    return { result: 'worked' };
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
  const name = NAMES.find(([kind]) => error instanceof kind);
  if (!name) throw error;
  return { result: name[1], message: error.message };
}

async function obey(order) {
  try {
    return await orders[order.do](order);
  } catch (error) {
    return failure(error);
  }
}

// The first requests of a process also load and compile what makes them, which takes a busy
// machine longer than the scenarios allow a request: these are to a service of its own.
async function warmUp() {
  const service = await Service.start(undefined, { ttl: 60_000 }); // no pause ends its leases
  const warm = service.client({ timeout: 10_000 });
  for (let n = 0; n < 3; n++) await warm.do('nothing', (granted) => granted.extend());
  await service.stop();
}

for await (const line of createInterface({ input: process.stdin })) {
  const order = JSON.parse(line);
  if (order.servers) {
    if (!client) await warmUp();
    client = new Client(order.servers, { timeout: order.timeout_ms, patience: order.patience_ms, batchAfter: process.argv.includes('batches') ? 0 : undefined });
    say({ result: 'ready' });
  } else {
    say(await obey(order));
  }
}
process.exit(); // what was given up may still be under way
