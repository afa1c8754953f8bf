// Workers that acquire and release through fencelock's TypeScript client, as driver.py's do.
import { createInterface } from 'node:readline';
import { pathToFileURL } from 'node:url';

const { Client, FencelockError, Held } = await import(pathToFileURL(process.argv[2]).href);
const now = () => Math.round(performance.now() * 1000); // µs
const record = { acquires: [], pairs: [], busy: 0, failed: 0, error: '' };
let measuring = false;
let stopped = false;

async function work(locks, resource, ttl) {
  while (!stopped) {
    const begin = now();
    try {
      const lease = await locks.acquire(resource, { ttl, wait: 0 });
      const acquired = now();
      await lease.release();
      if (measuring && !stopped) {
        record.acquires.push(acquired - begin);
        record.pairs.push(now() - begin);
      }
    } catch (error) {
      if (!(error instanceof FencelockError)) throw error;
      if (!(error instanceof Held)) record.error ||= String(error);
      if (measuring) record[error instanceof Held ? 'busy' : 'failed']++;
    }
  }
}

async function perform(job) {
  process.stdout.write('ready\n');
  const locks = new Client(job.url);
  await Promise.all(job.resources.map((resource) => work(locks, resource, job.ttl_ms)));
  await locks.close();
  process.stdout.write(JSON.stringify(record) + '\n', () => process.exit(0));
}

createInterface({ input: process.stdin })
  .on('line', (line) => {
    if (line === 'measure') measuring = true;
    else if (line === 'stop') stopped = true;
    else void perform(JSON.parse(line));
  })
  .on('close', () => (stopped = true));
