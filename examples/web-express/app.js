// POST /accounts/<id>/deposits/<deposit> {"amount": 5} under the account's lock, with Express, in several processes.
//
// DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 WORKERS=3 PORT=3000 node app.js   (express, pg, fencelock)
const cluster = require('node:cluster');
const { setTimeout: sleep } = require('node:timers/promises');
const express = require('express');
const { Client, fenced, Held, LeaseLost, Unavailable } = require('fencelock');
const { Pool } = require('pg');

function serve() {
  const locks = new Client(process.env.FENCELOCK_URL);
  const pool = new Pool({ connectionString: process.env.DATABASE_URL });
  pool.on('error', console.error); // of an idle connection, which the pool replaces
  const ttl = 1000 * Number(process.env.LEASE_TTL ?? 30); // milliseconds
  const app = express();

  app.post('/accounts/:account/deposits/:deposit', express.json(), (request, response, next) => {
    const { params: { account, deposit }, body: { amount } } = request;
    const work = (lease) => fenced(pool, lease, async (tx) => {
      const { rows } = await tx.query('SELECT balance FROM accounts WHERE id = $1', [account]);
      await sleep(100); // the rules of the business
      const balance = Number(rows[0].balance) + amount;
      await tx.query('INSERT INTO deposits VALUES ($1, $2, $3)', [deposit, account, amount]);
      await tx.query('UPDATE accounts SET balance = $1 WHERE id = $2', [balance, account]);
      return balance;
    });
    locks.do(`accounts/${account}`, work, { ttl, wait: 5000 }).then((balance) => response.json({ balance }), next);
  });

  app.use((error, request, response, next) => {
    if (error instanceof LeaseLost) response.status(409); // also StaleToken: another process had the account meanwhile
    else if (error instanceof Held || error instanceof Unavailable) response.status(503);
    else return next(error);
    response.json({ error: error.message });
  });

  const server = app.listen(Number(process.env.PORT ?? 0), '127.0.0.1', () => {
    console.log(`listening on http://127.0.0.1:${server.address().port}`);
  });
}

if (cluster.isPrimary) {
  for (let n = Number(process.env.WORKERS ?? 3); n > 0; n--) cluster.fork();
  cluster.on('exit', () => cluster.fork());
} else {
  serve();
}
