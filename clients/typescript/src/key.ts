/** A key that cannot be guessed. */
export async function randomKey(): Promise<string> {
  const crypto = await webcrypto;
  if (crypto.randomUUID) return crypto.randomUUID();
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}

const node = 'node:crypto'; // a variable, so that bundlers for browsers do not look for it

/** Web Crypto, which Node 18 has only in a module. Browsers have its randomUUID only in pages that came over TLS. */
const webcrypto: Promise<Crypto> = globalThis.crypto ? Promise.resolve(globalThis.crypto) : import(/* @vite-ignore */ node).then((m) => m.webcrypto as Crypto);
