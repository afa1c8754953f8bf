// Compares the cost of a pair (acquire and release) with that of a bare loop over fetch: node speed.mjs URL ROUNDS PAIRS
//
// Rounds alternate, so that a busy machine is busy for both. It prints the medians of the rounds' ratios by
// the clock and by this process's processor time, as JSON. The test judges a pair only by the clock: its processor
// time varies from 1.2 to 1.6 times that of the bare loop.
import crypto from 'node:crypto';

import { Client } from '../dist/index.mjs';

const [url, rounds, pairs] = [process.argv[2], Number(process.argv[3]), Number(process.argv[4])];
const locks = new Client(url);

/** The requests of a program without a client, and the responses that it has to read. It does not wait in the queue, because a
 * wait costs the service more. */
async function bare() {
  const body = JSON.stringify({ resource: 'speed/bare', ttl_ms: 10_000 });
  const granted = await fetch(`${url}/locks`, { method: 'POST', headers: { 'Content-Type': 'application/json', 'Idempotency-Key': crypto.randomUUID() }, body });
  const lease = await granted.json();
  const released = await fetch(`${url}/leases/current`, { method: 'DELETE', headers: { 'Fencelock-Lease': lease.lease_id } });
  await released.text();
}

const kinds = {
  bare,
  pair: async () => (await locks.acquire('speed/pair', { ttl: 10_000, wait: 0 })).release(),
  do: () => locks.do('speed/do', () => {}, { ttl: 10_000, wait: 0 }),
};

async function round(pair) {
  const [begun, used] = [performance.now(), process.cpuUsage()];
  for (let n = 0; n < pairs; n++) await pair();
  const { user, system } = process.cpuUsage(used);
  return { clock: (1000 * (performance.now() - begun)) / pairs, processor: (user + system) / pairs };
}

const median = (numbers) => numbers.sort((a, b) => a - b)[numbers.length >> 1];
const took = [];
for (let n = -10; n < rounds; n++) { // the first ten rounds warm up
  const each = {};
  for (const kind in kinds) each[kind] = await round(kinds[kind]);
  if (n >= 0) took.push(each);
}
await locks.close();

const said = { microseconds: {}, ratios: {}, others: {} };
for (const by of ['clock', 'processor']) {
  for (const kind in kinds) {
    said.microseconds[`${kind} by ${by}`] = Math.round(median(took.map((each) => each[kind][by])));
    if (kind !== 'bare') said[kind === 'pair' && by === 'clock' ? 'ratios' : 'others'][`${kind} by ${by}`] = Number(median(took.map((each) => each[kind][by] / each.bare[by])).toFixed(3));
  }
}
console.log(JSON.stringify(said));
