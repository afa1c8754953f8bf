// A small web backend: POST /orders/<id>/charge takes the order's lock, reads the order, and writes it guarded.
//
// DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 PORT=3000 node app.js   (pg, Node 18 or newer)
const http = require('node:http');
const { Pool } = require('pg');

const pool = new Pool({ connectionString: process.env.DATABASE_URL });
const locks = process.env.FENCELOCK_URL;

class NotAcquired extends Error {}

// Runs work(token) under the resource's lock. It must be done within the TTL; what comes later is refused by the guard.
async function withLock(resource, work) {
  const answer = await fetch(`${locks}/locks`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify({ resource, ttl_ms: 30_000, wait_ms: 10_000 }),
  });
  const lease = await answer.json();
  if (!answer.ok) throw new NotAcquired(lease.title);
  try {
    return await work(lease.fencing_token);
  } finally {
    await fetch(`${locks}/leases/${lease.lease_id}`, { method: 'DELETE' }).catch(() => {}); // the TTL ends it anyway
  }
}

async function charge(order) {
  return withLock(`orders/${order}`, async (token) => {
    const client = await pool.connect();
    try {
      await client.query('BEGIN');
      await client.query('SELECT fencing.claim($1, $2)', [`orders/${order}`, token]); // before the first read
      const { rows } = await client.query('SELECT charges FROM orders WHERE id = $1', [order]);
      const charges = rows[0].charges + 1; // here is where a payment would be made
      await client.query('UPDATE orders SET charges = $1 WHERE id = $2', [charges, order]);
      await client.query('COMMIT');
      return charges;
    } catch (error) {
      await client.query('ROLLBACK');
      throw error;
    } finally {
      client.release();
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
    if (error instanceof NotAcquired) return [503, { error: error.message }];
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
