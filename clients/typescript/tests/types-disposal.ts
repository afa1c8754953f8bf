// The code of users of TypeScript 5.2 and newer, whose library has Symbol.asyncDispose: compiled by a test, and not run.
import { Client, Lease } from 'fencelock';

declare global {
  interface SymbolConstructor {
    readonly asyncDispose: unique symbol;
  }
}

export async function use(locks: Client, lease: Lease): Promise<void> {
  const ended: Promise<void> = lease[Symbol.asyncDispose]();
  await ended;
  await locks[Symbol.asyncDispose]();
}
