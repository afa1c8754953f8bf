/** A key that cannot be guessed. */
export async function randomKey() {
    const crypto = await webcrypto;
    if (crypto.randomUUID)
        return crypto.randomUUID();
    return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
const node = 'node:crypto'; // a variable, so that bundlers for browsers do not look for it
/** Node 18 has it in a module alone. Browsers have randomUUID in pages that came over TLS. */
const webcrypto = globalThis.crypto ? Promise.resolve(globalThis.crypto) : import(/* @vite-ignore */ node).then((m) => m.webcrypto);
