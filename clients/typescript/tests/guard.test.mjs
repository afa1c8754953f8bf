// The guard's helper on a real Postgres, DATABASE_URL, whose accounts are protected; node-postgres is found by NODE_PATH.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import { after, test } from 'node:test';

import { Client, fenced, guardError, LeaseLost, Refused, StaleToken } from '../dist/index.mjs';
import { Service } from './service.mjs';

const pg = createRequire(import.meta.url)('pg');
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
const service = await new Service().start();
const locks = new Client(service.url);
after(async () => {
  await locks.close();
  await Promise.all([pool.end(), service.stop()]);
});

/** A lease with these tokens. */
async function leaseOf(tokens, ttl = 10_000) {
  const parts = Object.entries(tokens).map(([resource, fencing_token]) => ({ resource, fencing_token }));
  service.answers['POST /locks'] = { lease_id: 'x', ttl_ms: ttl, validity_ms: ttl, waited_ms: 0, ...(parts.length > 1 ? { resources: parts } : parts[0]) };
  return locks.acquire(Object.keys(tokens));
}

const balance = async (id) => Number((await pool.query('SELECT balance FROM accounts WHERE id = $1', [id])).rows[0].balance);
const set = (client, id, to) => client.query('UPDATE accounts SET balance = $1 WHERE id = $2', [to, id]);

async function connected(use) {
  const client = new pg.Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  try {
    return await use(client);
  } finally {
    await client.end();
  }
}

test('a deposit under a token, through a pool and through a client', async () => {
  assert.equal(await fenced(pool, await leaseOf({ 'accounts/1': 5 }), async (tx) => { await set(tx, 1, 7); return 'done'; }), 'done');
  await connected(async (client) => fenced(client, await leaseOf({ 'accounts/1': 6 }), (tx) => { assert.equal(tx, client); return set(tx, 1, 8); }));
  assert.equal(await balance(1), 8);
  assert.equal(pool.idleCount, pool.totalCount);
});

test('a session that is idle when its lease is over is ended, and keeps no later one waiting', async () => {
  const lease = await leaseOf({ 'accounts/1': 7 }, 8000);
  await fenced(pool, lease, async (tx) => {
    const { rows: [{ idle, wait }] } = await tx.query("SELECT current_setting('idle_in_transaction_session_timeout')::interval AS idle, current_setting('lock_timeout')::interval AS wait");
    const milliseconds = ({ seconds = 0, milliseconds = 0 }) => 1000 * seconds + milliseconds;
    assert.ok(milliseconds(idle) > 1000 && milliseconds(idle) <= 9000, String(milliseconds(idle))); // less than 9000 if the lease has run for a while
    assert.equal(milliseconds(idle), milliseconds(wait) + 1000);
  });
});

test('a stale token writes nothing, and says which is the highest', async () => {
  await fenced(pool, await leaseOf({ 'accounts/2': 5 }), () => {});
  await assert.rejects(fenced(pool, await leaseOf({ 'accounts/2': 4 }), () => assert.fail('it ran')), (error) =>
    error instanceof StaleToken && error instanceof LeaseLost && error.presented === 4 && error.highest === 5 && error.resource === 'accounts/2' && error.cause.code === 'LK001');
});

test('an error rolls back, and the pool has its client again', async () => {
  await assert.rejects(fenced(pool, await leaseOf({ 'accounts/3': 1 }), async (tx) => { await set(tx, 3, 99); throw new RangeError('mine'); }), /mine/);
  assert.equal(await balance(3), 0);
  assert.ok(pool.totalCount > 0 && pool.idleCount === pool.totalCount);
});

test('a lost lease is not committed, and does not begin', async () => {
  const lease = await leaseOf({ 'accounts/4': 1 }, 1500);
  await assert.rejects(fenced(pool, lease, async (tx) => { await set(tx, 4, 99); await new Promise((done) => setTimeout(done, lease.validity + 10)); }), LeaseLost);
  await assert.rejects(fenced(pool, lease, () => assert.fail('it ran')), LeaseLost);
  assert.equal(await balance(4), 0);
});

test('a claim does not wait for longer than its lease', async () => {
  await connected(async (holder) => {
    await holder.query('BEGIN');
    await holder.query("SELECT fencing.claim('accounts/5', 1)");
    await assert.rejects(fenced(pool, await leaseOf({ 'accounts/5': 2 }, 1500), () => assert.fail('two holders at once')), LeaseLost);
  });
});

test('several resources', async () => {
  await fenced(pool, await leaseOf({ 'accounts/6': 3, 'accounts/7': 4 }), async (tx) => { await set(tx, 6, 1); await set(tx, 7, 2); });
  assert.deepEqual([await balance(6), await balance(7)], [1, 2]);
});

test('a transaction that has begun is refused, and left alone', async () => {
  await connected(async (client) => {
    await client.query('BEGIN');
    await set(client, 999, 0).catch(() => {}); // the guard refuses a write without a token
    await client.query('ROLLBACK');
    await client.query('BEGIN');
    await assert.rejects(fenced(client, await leaseOf({ 'accounts/8': 1 }), () => assert.fail('it ran')), /in a transaction already/);
    assert.equal((await client.query("SELECT current_setting('transaction_isolation') AS level, pg_current_xact_id_if_assigned() IS NULL AS nothing")).rows[0].nothing, true);
    await client.query('ROLLBACK');
    assert.equal(client.listenerCount('notice'), 0);
  });
});

test('a connection that is lost is not given back', async () => {
  const pid = async (tx) => (await tx.query('SELECT pg_backend_pid() AS pid')).rows[0].pid;
  let lost;
  await assert.rejects(fenced(pool, await leaseOf({ 'accounts/9': 1 }), async (tx) => {
    lost = await pid(tx);
    const ended = new Promise((resolve) => tx.once('end', resolve));
    await connected((other) => other.query('SELECT pg_terminate_backend($1)', [lost]));
    await ended; // the connection ends while no query is under way; the application listens for no error of it
    await set(tx, 9, 1);
  }));
  assert.notEqual(await pid(pool), lost);
});

test('errors of the guard are the library\'s, also those that an ORM has wrapped', async () => {
  const other = new URL(process.env.DATABASE_URL);
  other.pathname = '/template1';
  const empty = new pg.Pool({ connectionString: other.href });
  await assert.rejects(fenced(empty, await leaseOf({ a: 1 }), () => {}), (e) => e instanceof Refused && e.kind === 'guard-not-configured' && /fencelock guard install/.test(e.message) && e.cause.code === '3F000');
  await empty.end();
  await assert.rejects(fenced(pool, await leaseOf({ 'accounts/10': 1 }), (tx) => set(tx, 11, 1)), (e) => e instanceof Refused && e.kind === 'token-required');
  const lease = await leaseOf({ 'accounts/10': 1 });
  const detail = JSON.stringify({ resource: 'accounts/10', presented: 1, highest: 2 });
  for (const wrapped of [{ driverError: { code: 'LK001', detail } }, { code: 'P2010', meta: { code: 'LK001' } }]) { // TypeORM, Prisma
    const error = guardError(wrapped, lease);
    assert.ok(error instanceof StaleToken && error.cause === wrapped && /another fencelock cluster/.test(error.message));
  }
  const mine = new RangeError('mine');
  assert.equal(guardError(mine, lease), mine);
});
