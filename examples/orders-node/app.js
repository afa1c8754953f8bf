// A small web backend: POST /orders/<id>/charge takes the order's lock, reads the order, and writes it guarded.
//
// DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 PORT=3000 node app.js   (pg, Node 18 or newer)
const { randomUUID } = require('node:crypto');
const http = require('node:http');
const { setTimeout: sleep } = require('node:timers/promises');
const { Pool } = require('pg');

const pool = new Pool({ connectionString: process.env.DATABASE_URL, connectionTimeoutMillis: 5_000 });
const servers = process.env.FENCELOCK_URL.split(','); // of one service: when one does not answer, the next is asked
const [ANSWER, WAIT] = [2_000, 2_000]; // milliseconds that a server has to answer, and that one request waits in the queue
const [PATIENCE, TTL] = [15_000, 30_000]; // milliseconds of trying, and of the lease: much longer than one try
const WORK = 5_000; // milliseconds of the lease that must be left when the work begins
let answered = 0; // the server that answered last

class Unavailable extends Error {}

// Asks until a server answers for good: when that request was sent, and its answer. It may be sent twice.
async function ask(method, path, { body, headers, wait = 0, patience = 2 * ANSWER } = {}) {
  let status = 599;
  for (const begun = performance.now(); performance.now() - begun < patience; await sleep(50 + 150 * Math.random())) {
    const [server, sent] = [answered, performance.now()];
    try {
      const answer = await fetch(servers[server] + path, {
        method,
        headers: { 'Content-Type': 'application/json', ...headers },
        body: body && JSON.stringify(body),
        signal: AbortSignal.timeout(wait + ANSWER),
      });
      const text = await answer.text();
      status = answer.status;
      if (answer.ok) return { sent, lease: text && JSON.parse(text) };
      if (status < 500 && ![408, 409, 429].includes(status)) return { sent, status };
    } catch {
      status = 599; // no answer: it may have taken effect
    }
    if (status >= 500 && answered === server) answered = (server + 1) % servers.length;
  }
  throw new Unavailable(`${method}: ${status}`); // what a lost answer may have granted ends with its TTL
}

// Runs work(token, until) under a lease that is valid until then, by performance.now(). The guard refuses what comes later.
async function withLock(resource, work) {
  const { sent, status, lease } = await ask('POST', '/locks', {
    body: { resource, ttl_ms: TTL, wait_ms: WAIT },
    headers: { 'Idempotency-Key': randomUUID() }, // every try finds the same lease
    wait: WAIT,
    patience: PATIENCE,
  });
  if (!lease) throw new Unavailable(`not acquired: ${status}`);
  const until = sent + lease.waited_ms + lease.validity_ms; // never from when the answer came
  try {
    if (until - performance.now() < WORK) throw new Unavailable('the lease arrived too late');
    return await work(lease.fencing_token, until);
  } finally {
    // After a lost answer, 404 is as good as 204. Without any answer the TTL ends the lease.
    await ask('DELETE', '/leases/current', { headers: { 'Fencelock-Lease': lease.lease_id } }).catch(() => {});
  }
}

async function charge(order) {
  return withLock(`orders/${order}`, async (token, until) => {
    const client = await pool.connect();
    let failure;
    try {
      await client.query('BEGIN');
      await client.query('SELECT fencing.claim($1, $2)', [`orders/${order}`, token]); // before the first read
      const { rows } = await client.query('SELECT charges FROM orders WHERE id = $1', [order]);
      if (performance.now() > until) throw new Unavailable('the lease has expired');
      const charges = rows[0].charges + 1; // here is where a payment would be made, which no guard can refuse
      await client.query('UPDATE orders SET charges = $1 WHERE id = $2', [charges, order]);
      await client.query('COMMIT');
      return charges;
    } catch (error) {
      failure = error;
      throw error;
    } finally {
      client.release(failure); // after a failure the connection is closed, which rolls back
    }
  });
}

async function handle(request) {
  const path = /^\/orders\/(\d+)\/charge$/.exec(request.url);
  if (request.method !== 'POST' || !path) return [404, { error: 'no such path' }];
  try {
    return [200, { charges: await charge(Number(path[1])) }];
  } catch (error) {
    if (error.code === 'LK001') return [409, { error: 'the order changed hands, try again' }]; // nothing was written
    if (error instanceof Unavailable) return [503, { error: error.message }];
    console.error(error);
    return [500, { error: 'see the log' }];
  }
}

const server = http.createServer(async (request, response) => {
  request.resume();
  const [status, body] = await handle(request);
  response.writeHead(status, { 'Content-Type': 'application/json' }).end(JSON.stringify(body));
});
server.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}`);
});
