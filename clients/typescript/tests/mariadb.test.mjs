// The guard's helper on a real MariaDB, MARIADB_URL, whose accounts are protected; mysql, and mysql2 if it is there, are found by NODE_PATH.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import net from 'node:net';
import { after, test } from 'node:test';

import { Client, fenced, guardError, LeaseLost, Refused, StaleToken } from '../dist/index.mjs';
import { Service } from './service.mjs';

const require = createRequire(import.meta.url);
const mysql = require('mysql');
const configOf = (url) => {
  const { hostname: host, port, username: user, password, pathname } = new URL(url);
  return { host, port: Number(port), user, password: decodeURIComponent(password), database: pathname.slice(1) };
};
const config = configOf(process.env.MARIADB_URL);
const service = await new Service().start();
const locks = new Client(service.url);
const pools = { 'mysql': mysql.createPool(config), 'promises over mysql': promised(mysql.createPool(config)) };
try {
  pools.mysql2 = require('mysql2').createPool(config);
  pools['mysql2/promise'] = require('mysql2/promise').createPool(config);
} catch {
  console.log('NOT RUN: mysql2 is not here; what it gives is made of mysql');
}
after(async () => {
  await locks.close();
  for (const pool of Object.values(pools)) await (pool.Promise ? pool.end() : new Promise((done) => pool.end(done)));
  await service.stop();
});

/** A pool with the interface of mysql2/promise around one of `mysql`: both have a property Promise, and queries
 * return promises of [rows, fields]. */
function promised(of) {
  const call = (f) => new Promise((resolve, reject) => f((error, ...values) => (error ? reject(error) : resolve(values))));
  const connection = (c) => ({
    Promise, connection: c, beginTransaction: () => call((done) => c.beginTransaction(done)),
    query: (sql, values) => call((done) => c.query(sql, values, done)), release: () => c.release(), destroy: () => c.destroy(),
  });
  return { Promise, pool: of, getConnection: async () => connection((await call((done) => of.getConnection(done)))[0]), end: () => call((done) => of.end(done)) };
}

async function leaseOf(tokens, ttl = 10_000) {
  const parts = Object.entries(tokens).map(([resource, fencing_token]) => ({ resource, fencing_token }));
  service.answers['POST /locks'] = { lease_id: 'x', ttl_ms: ttl, validity_ms: ttl, waited_ms: 0, ...(parts.length > 1 ? { resources: parts } : parts[0]) };
  return locks.acquire(Object.keys(tokens));
}

const rows = async (c, sql, values = []) => (c.Promise ? (await c.query(sql, values))[0] : new Promise((ok, no) => c.query(sql, values, (e, r) => (e ? no(e) : ok(r)))));
const set = (c, id, to) => rows(c, 'UPDATE accounts SET balance = ? WHERE id = ?', [to, id]);
const balance = async (id) => Number((await rows(pools.mysql, 'SELECT balance FROM accounts WHERE id = ?', [id]))[0].balance);

/** A proxy to MariaDB for one connection. It holds back the client's n-th packet, counted from the one that begins the
 * transaction, as if the holder were paused there. `meanwhile` runs in that pause. */
async function pausing(n, meanwhile) {
  const pause = { packet: undefined, error: undefined };
  let left = n;
  let begun = false;
  const server = net.createServer((holder) => {
    const maria = net.connect(config.port, config.host);
    for (const [one, other] of [[holder, maria], [maria, holder]]) one.on('error', () => {}).on('close', () => other.destroy());
    maria.pipe(holder);
    holder.on('data', async (packet) => {
      begun ||= packet.includes('START TRANSACTION');
      if (begun && --left === 0) {
        pause.packet = packet.toString('latin1', 5);
        await meanwhile().catch((e) => (pause.error = e));
      }
      if (!maria.destroyed) maria.write(packet);
    });
  });
  await new Promise((done) => server.listen(0, '127.0.0.1', done));
  return Object.assign(pause, { port: server.address().port, close: () => server.close() });
}

const claim = (id, token) => rows(pools.mysql, 'SET STATEMENT innodb_lock_wait_timeout = 8 FOR SELECT fencing_claim(?, ?)', [`accounts/${id}`, token]);

/** Runs eight holders; each is paused before a different one of its packets. Returns these packets. */
async function paused(wrapped, first, fails) {
  const plans = [];
  for (let n = 1; n <= 8; n++) {
    const id = first + n;
    await claim(id, 1); // creates the row, so that each claim below waits only for its own row
    plans.push({ id, pause: await pausing(n, () => claim(id, 3)) });
  }
  const running = [];
  for (const { id, pause } of plans) {
    const held = await leaseOf({ [`accounts/${id}`]: 2 }, 2000);
    const pool = mysql.createPool({ ...config, port: pause.port });
    running.push(fenced(wrapped ? promised(pool) : pool, held, async (c) => { await set(c, id, 1); if (fails) throw new RangeError('mine'); }).catch(() => {}).then(() => pool.end(pause.close)));
  }
  await Promise.all(running);
  for (const { pause } of plans) assert.equal(pause.error, undefined, `before ${pause.packet}`);
  return plans.map(({ pause }) => pause.packet);
}

let token = 0;
let first = 0;
for (const [name, pool] of Object.entries(pools)) {
  test(`${name}: a holder that is paused before any packet of its transaction does not keep its successor from the rows`, async () => {
    first += 100; // each test has its own accounts
    const [commits, rollbacks] = [await paused(name !== 'mysql', first, false), await paused(name !== 'mysql', first + 20, true)];
    assert.ok(commits.includes('COMMIT'), String(commits));
    assert.ok(rollbacks.includes('ROLLBACK'), String(rollbacks));
    assert.deepEqual([commits.at(-1), rollbacks.at(-1)], [undefined, undefined], 'there are more packets');
  });

  test(`${name}: a deposit under tokens, and a stale one`, async () => {
    token += 10;
    assert.equal(await fenced(pool, await leaseOf({ 'accounts/1': token, 'accounts/2': token }), async (c) => { await set(c, 1, token); await set(c, 2, token); return 'done'; }), 'done');
    assert.deepEqual([await balance(1), await balance(2)], [token, token]);
    await assert.rejects(fenced(pool, await leaseOf({ 'accounts/1': token - 1 }), () => assert.fail('it ran')), (e) =>
      e instanceof StaleToken && e.presented === token - 1 && e.highest === token && e.resource === 'accounts/1' && /still valid here.*another fencelock cluster/.test(e.message));
  });

  test(`${name}: a connection that is idle when its lease is over is ended, and the pool gets it back as it was`, async () => {
    token += 10;
    const timeout = async (c, setting) => (await rows(c, `SELECT @@SESSION.${setting} AS s`))[0].s;
    const kept = await new Promise((ok, no) => (pool.Promise ? pool.getConnection().then(ok, no) : pool.getConnection((e, c) => (e ? no(e) : ok(c)))));
    // The last two count instead of the first if they are not 0.
    for (const setting of ['idle_transaction_timeout', 'idle_write_transaction_timeout', 'idle_readonly_transaction_timeout']) {
      for (const own of [0, 1, 1000]) {
        for (const fails of [false, true]) {
          await rows(kept, `SET SESSION ${setting} = ${own}`);
          let inside;
          await fenced(kept, await leaseOf({ 'accounts/7': token }, 8000), async (c) => { inside = await timeout(c, setting); if (fails) throw new RangeError('mine'); }).catch((e) => assert.match(e.message, /mine/));
          const stays = own === 1 || (own === 0 && setting !== 'idle_transaction_timeout');
          assert.ok(stays ? inside === own : inside >= 2 && inside <= 9, `${setting} ${own}: ${inside}`);
          assert.equal(await timeout(kept, setting), own);
        }
      }
      await rows(kept, `SET SESSION ${setting} = DEFAULT`);
    }
    kept.release();
  });

  test(`${name}: an error rolls back, a row that was not claimed is refused, and nothing stays claimed`, async () => {
    token += 10;
    await assert.rejects(fenced(pool, await leaseOf({ 'accounts/3': token }), async (c) => { await set(c, 3, 99); throw new RangeError('mine'); }), /mine/);
    await assert.rejects(fenced(pool, await leaseOf({ 'accounts/3': token }), (c) => set(c, 4, 99)), (e) => e instanceof Refused && e.kind === 'token-required' && e.cause.errno === 31002);
    await fenced(pool, await leaseOf({ 'accounts/3': token }), () => {});
    const again = await new Promise((ok, no) => (pool.Promise ? pool.getConnection().then(ok, no) : pool.getConnection((e, c) => (e ? no(e) : ok(c)))));
    await assert.rejects(set(again, 3, 99), (e) => e.errno === 31002);
    again.release();
    assert.deepEqual([await balance(3), await balance(4)], [0, 0]);
  });

  test(`${name}: a lost lease is not committed, and a transaction that has begun is refused`, async () => {
    const lease = await leaseOf({ 'accounts/5': token + 10 }, 1500);
    await assert.rejects(fenced(pool, lease, async (c) => { await set(c, 5, 99); await new Promise((done) => setTimeout(done, lease.validity + 10)); }), LeaseLost);
    assert.equal(await balance(5), 0);
    const c = await new Promise((ok, no) => (pool.Promise ? pool.getConnection().then(ok, no) : pool.getConnection((e, one) => (e ? no(e) : ok(one)))));
    await rows(c, 'START TRANSACTION');
    await assert.rejects(fenced(c, await leaseOf({ 'accounts/6': token + 10 }), () => assert.fail('it ran')), /in a transaction already/);
    await rows(c, 'ROLLBACK');
    await fenced(c, await leaseOf({ 'accounts/6': token + 10 }), (same) => assert.equal(same, c));
    c.release();
  });
}

test('a connection that cannot forget its claim is destroyed, and what it has committed is the result', async () => {
  let destroyed = 0;
  const getConnection = (done) => pools.mysql.getConnection((error, c) => {
    const query = (sql, values, f) => c.query(sql.startsWith('SET @fencing_claimer') ? 'SELECT nothing' : sql, values, f);
    done(error, { beginTransaction() {}, query, release: () => assert.fail('it was given back'), destroy: () => { destroyed++; c.destroy(); } });
  });
  assert.equal(await fenced({ getConnection }, await leaseOf({ 'accounts/8': 1 }), async (c) => { await set(c, 8, 5); return 'done'; }), 'done');
  await assert.rejects(fenced({ getConnection }, await leaseOf({ 'accounts/8': 1 }), () => { throw new RangeError('mine'); }), /mine/);
  assert.equal(destroyed, 2);
  assert.equal(await balance(8), 5);
});

test('a database without a guard says what to do, and other errors stay', async () => {
  const lease = await leaseOf({ 'accounts/1': 1 });
  const other = mysql.createPool(configOf(process.env.MARIADB_EMPTY_URL));
  const error = await fenced(other, lease, () => {}).catch((e) => e);
  await new Promise((done) => other.end(done));
  assert.ok(error instanceof Refused && error.kind === 'guard-not-configured' && /fencelock guard install/.test(error.message) && error.cause.errno === 1305, String(error));
  const mine = { errno: 1305, message: 'FUNCTION shop.total does not exist' };
  assert.equal(guardError(mine, lease), mine);
});
