// Makes the deposits of a queue in Postgres (jobs.sql): those of an account one after the other, of several accounts at the same
// time, each once. Run any number of workers.
//
// DATABASE_URL=postgres://… FENCELOCK_URL=http://127.0.0.1:8080 node worker.js   (pg, fencelock)
const { setTimeout: sleep } = require('node:timers/promises');
const { Client, fenced, Held, LeaseLost, Unavailable } = require('fencelock');
const { Pool } = require('pg');

const IDLE = 200; // milliseconds between two looks at an empty queue
const RULES = 50; // milliseconds that the rules of the business take
const ttl = 1000 * Number(process.env.LEASE_TTL ?? 30);
const locks = new Client(process.env.FENCELOCK_URL, { holder: `worker ${process.pid}` });
const pool = new Pool({ connectionString: process.env.DATABASE_URL });
pool.on('error', console.error); // of an idle connection, which the pool replaces

// The oldest job of the account. That it is done is committed with what it does: a worker that dies leaves it to the next.
const work = (account) => (lease) => fenced(pool, lease, async (tx) => {
  const { rows: [job] } = await tx.query('SELECT id, amount FROM jobs WHERE account = $1 AND done_under IS NULL ORDER BY id LIMIT 1', [account]);
  if (!job) return; // another worker was faster
  const { rows: [{ balance }] } = await tx.query('SELECT balance FROM accounts WHERE id = $1', [account]);
  await sleep(RULES);
  await tx.query('UPDATE accounts SET balance = $1 WHERE id = $2', [Number(balance) + Number(job.amount), account]);
  await tx.query('UPDATE jobs SET done_under = $1 WHERE id = $2', [String(lease.token), job.id]);
});

async function turn() {
  const { rows } = await pool.query('SELECT DISTINCT account FROM jobs WHERE done_under IS NULL');
  let idle = true;
  for (const { account } of rows.sort(() => Math.random() - 0.5)) {
    try {
      await locks.do(`accounts/${account}`, work(account), { ttl, wait: 0 });
      idle = false;
    } catch (error) {
      // Another worker is at the account, or it took over; the job is still in the queue.
      if (!(error instanceof Held || error instanceof LeaseLost || error instanceof Unavailable)) throw error;
    }
  }
  if (idle) await sleep(IDLE);
}

(async () => {
  for (;;) await turn().catch(async (error) => { // the database is away
    console.error(error);
    await sleep(IDLE);
  });
})();
