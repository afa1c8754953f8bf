/** A lock service in memory, for the tests of an application in Node.
 *
 *     import { Service } from 'fencelock/testing';
 *
 *     test('a deposit', async (t) => {
 *       const service = await Service.start(t);        // ends with the test of node:test
 *       const locks = service.client();
 *       service.end('accounts/1');                     // as if its time to live had passed
 *       service.loseNextAnswer();                      // of a request that was carried out
 *       const other = service.hold('accounts/1');      // another process has it
 *       other.release();
 *     });
 *
 * It answers like a server of fencelock, over HTTP: locks and their queue, several resources, slots, idempotency
 * keys, breaks, guarded records and events. There is no access control and no persistence, minHold and maxHold
 * change nothing, and proofs are not made.
 *
 * No lease ends by the clock: what a test does not end lasts until it is released. Each gets a time to live of
 * 1.5 s, whatever was asked for (`ttl` of `start`), so that who keeps it alive notices within half a second that it was ended. */
import { Client, ClientOptions } from './client.js';
/** What a test of node:test, or of another runner, has to end what it began. */
export interface TestContext {
    after(f: () => Promise<void> | void): void;
}
/** A lease of another process. */
export interface Other {
    /** The fencing token of its first resource. */
    readonly token: number;
    /** Ends the lease, if it still holds. The next in the queue gets the resources. */
    release(): void;
}
/** A lock service in memory, on a port of its own. */
export declare class Service {
    #private;
    /** Its URL, for clients and for programs under test. */
    readonly url: string;
    /** Starts a service. With the context of a test of node:test it ends with the test; without, by `stop`. */
    static start(test?: TestContext, { ttl }?: {
        ttl?: number;
    }): Promise<Service>;
    private constructor();
    /** A client of the service, which is closed with it. */
    client(options?: ClientOptions): Client;
    stop(): Promise<void>;
    /** Ends the lease of a resource now, as if its time to live had passed. Its holder learns of it with its next extend. */
    end(resource: string): void;
    /** Has the next request carried out, and closes its connection in place of an answer. Called twice, it is for two requests. */
    loseNextAnswer(): void;
    /** How many answers were lost. */
    get lost(): number;
    /** Has another process hold the resources. */
    hold(...resources: readonly string[]): Other;
    /** Resolves when so many requests wait for the resource. */
    awaitWaiters(resource: string, n?: number): Promise<void>;
}
