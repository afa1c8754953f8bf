// A program whose compiler has neither the DOM's library nor Node's types: compiled by a test, and not run.
import { Client, fenced, Lease, Signal } from 'fencelock';
import { Service } from 'fencelock/testing';

export async function use(db: { query(text: string, values?: any[]): Promise<any> }): Promise<void> {
  const locks: Client = new Client('http://a', { fetch: async (url, init) => { throw new Error(url + init.method); } });
  await locks.do('a', async (lease: Lease, signal: Signal) => {
    signal.throwIfAborted();
    signal.addEventListener('abort', () => {}, { once: true });
    await locks.do('a', () => fenced(db, lease, () => 1), { signal: lease.signal });
  });
  // @ts-expect-error: the type is not any
  await locks.acquire('a', { signal: 1 });
  await (await Service.start()).client({ holder: 'me' }).close();
}
