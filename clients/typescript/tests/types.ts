// The code of users under tsc --strict: compiled by a test, in both module systems, and not run.
import { Service } from 'fencelock/testing';
import { AcquireOptions, Client, FencelockError, fenced, GuardedRecord, Held, Lease, LeaseLost, Part, Retry } from 'fencelock';

interface Tx {
  query(text: string, values?: any[]): Promise<{ rows: { balance: string }[] }>;
}
interface Pool {
  readonly totalCount: number;
  connect(): Promise<Tx & { release(error?: Error | boolean): void }>;
}

interface Mysql {
  beginTransaction(): Promise<void>;
  query<T>(sql: string, values?: any): Promise<[T, unknown]>;
  destroy(): void;
  release(): void;
}
interface MysqlPool {
  getConnection(): Promise<Mysql>;
}
interface CallbackMysql {
  beginTransaction(done: (error: Error | null) => void): void;
  query(sql: string, values: any, done?: (error: Error | null, rows: any) => any): object;
  destroy(): void;
  release(): void;
}
interface CallbackPool {
  getConnection(done: (error: Error, connection: CallbackMysql) => any): void;
}

export async function inMariadb(promises: MysqlPool, callbacks: CallbackPool, connection: Mysql, lease: Lease): Promise<number> {
  const n: number = await fenced(promises, lease, async (c) => (await c.query<number>('SELECT 1'))[0]);
  await fenced(callbacks, lease, (c) => void c.query('SELECT 1', []));
  await fenced(connection, lease, (c) => c.query('SELECT 1'));
  return n;
}

export async function inTests(t: { after(f: () => void): void }): Promise<void> {
  const service = await Service.start(t);
  const other = await service.hold('a');
  await service.client({ holder: 'me' }).inspect('a');
  await other.release();
  await service.end('a');
}

export async function use(pool: Pool, client: Tx): Promise<number> {
  const locks = new Client(['http://a', 'http://b'], { bearer: async () => 'x', onRetry: (retry: Retry) => console.log(retry.error.retryAfter) });
  const options: AcquireOptions = { ttl: 30_000, wait: 0, metadata: { job: 1 } };
  const n: number = await locks.do('orders/42', async (lease: Lease, signal: AbortSignal) => {
    lease.check();
    signal.throwIfAborted();
    const inside: string = await locks.do('orders/42', () => 'joined', { signal });
    const balance: string | undefined = await fenced(pool, lease, async (tx) => (await tx.query('SELECT 1')).rows[0]?.balance);
    await fenced(client, lease, (tx) => tx.query('SELECT 1'));
    return inside.length + Number(balance);
  }, { ...options, margin: 100 });
  const lease = await locks.lock(['a', 'b'], options);
  const parts: readonly Part[] = lease.parts;
  for await (const lock of locks.list('orders/')) if (lock.token) await locks.breakLock(lock.resource, lock.token);
  const record: GuardedRecord = await locks.claimRecord(lease.parts[0] as Part);
  await locks.writeRecord(parts[0] as Part, { paid: record.value });
  for await (const lock of locks.watch('a', { signal: new AbortController().signal })) if (lock?.held) break;
  const led: string = await locks.elect('a', (leader: Lease, signal: AbortSignal) => `${leader.token} ${signal.aborted}`, { slots: 2 });
  for await (const attempt of locks.history('a')) console.log(attempt.accepted);
  try {
    await locks.acquire('a', { wait: 0 });
  } catch (error) {
    if (error instanceof Held) console.log(error.holder, error.remaining);
    if (error instanceof LeaseLost) console.log(error.kind);
    if (!FencelockError.is(error)) throw error;
    switch (error.kind) {
      case 'lock-held':
        console.log(error.holder, error.remaining);
        break;
      case 'stale-token':
        console.log(error.presented, error.highest);
        break;
      case 'other-lease':
        console.log(error.token);
        break;
      case 'no-quorum':
        console.log(error.retryAfter);
    }
    // @ts-expect-error: only some have a holder
    console.log(error.holder);
  }
  // @ts-expect-error: milliseconds
  await locks.acquire('a', { ttl: '30s' });
  // @ts-expect-error: only a client makes one
  lease.until = 1;
  return n + parts.length + led.length + lease.slot;
}
