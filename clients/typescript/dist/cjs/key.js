"use strict";
Object.defineProperty(exports, "__esModule", { value: true });
exports.randomKey = void 0;
/** A key that cannot be guessed. */
async function randomKey() {
    const crypto = await webcrypto;
    if (crypto.randomUUID)
        return crypto.randomUUID();
    return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, '0')).join('');
}
exports.randomKey = randomKey;
const node = 'node:crypto'; // a variable, so that bundlers for browsers do not look for it
/** Web Crypto, which Node 18 has only in a module. Browsers have its randomUUID only in pages that came over TLS. */
const webcrypto = globalThis.crypto ? Promise.resolve(globalThis.crypto) : Promise.resolve().then(() => require(/* @vite-ignore */ node)).then((m) => m.webcrypto);
