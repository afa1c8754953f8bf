// DATABASE_URL=postgres://… node deposit.js TOKEN AMOUNT  (pg)
const { Client } = require('pg');

async function deposit(client, token, amount) {
  await client.query('BEGIN');
  await client.query("SELECT fencing.claim('accounts/1', $1)", [token]); // before the first read
  const { rows } = await client.query('SELECT balance FROM accounts WHERE id = 1');
  const balance = BigInt(rows[0].balance) + BigInt(amount);
  await client.query('UPDATE accounts SET balance = $1 WHERE id = 1', [balance]);
  await client.query('COMMIT');
  return balance;
}

async function main([token, amount]) {
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  try {
    console.log('balance is', String(await deposit(client, token, amount)));
  } catch (error) {
    if (error.code !== 'LK001') throw error;
    const stale = JSON.parse(error.detail);
    console.error(`stale: presented ${stale.presented}, highest ${stale.highest}; acquire the lock again`);
    process.exitCode = 3;
  } finally {
    await client.end(); // ends a transaction that failed
  }
}

main(process.argv.slice(2));
