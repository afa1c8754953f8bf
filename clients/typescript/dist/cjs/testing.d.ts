/** The real lock service, for the tests of an application in Node.
 *
 *     import { Service } from 'fencelock/testing';
 *
 *     test('a deposit', async (t) => {
 *       const service = await Service.start(t);              // ends with the test of node:test
 *       const locks = service.client();
 *       await service.end('accounts/1');                     // as if its time to live had passed
 *       service.loseNextResponse();                          // of a request that was carried out
 *       const other = await service.hold('accounts/1');      // another process has it
 *       await other.release();
 *     });
 *
 * It starts the program `fencelock`, which keeps its locks in a temporary file and is ready in a tenth of a second: the
 * `program` of `start`, the one that the variable FENCELOCK_PROGRAM names, the one in PATH, or the container image that FENCELOCK_IMAGE
 * names (`fencelock` unless set). So a test meets every check, limit and refusal of the service.
 *
 * A lease without a `ttl` lives for 1.5 s unless it is extended, so that whoever keeps it alive notices within half a second
 * that it was ended. */
import { Client } from './client.js';
import { ClientOptions } from './options.js';
/** The part of a test's context that registers a clean-up, in node:test or another runner. */
export interface TestContext {
    after(f: () => Promise<void> | void): void;
}
export interface ServiceOptions {
    /** The time to live of leases that are acquired without one, in milliseconds; 1500. */
    ttl?: number | undefined;
    /** The path of the program. */
    program?: string | undefined;
}
/** A lease of another process. */
export interface Other {
    /** The fencing token of its first resource. */
    readonly token: number;
    /** Ends the lease. The next in the queue gets the resources. */
    release(): Promise<void>;
}
/** A process of the lock service, on a port of its own. */
export declare class Service {
    #private;
    /** Its URL, for clients and for programs under test. */
    readonly url: string;
    private constructor();
    /** Starts a service. It ends with the test whose context it gets, or by `stop`. Rejects if the program cannot be started. */
    static start(t?: TestContext, options?: ServiceOptions): Promise<Service>;
    /** Ends the service, and the clients of `client`. */
    stop(): Promise<void>;
    /** A client of the service, which is closed with it. */
    client(options?: ClientOptions): Client;
    /** Ends the lease of a resource now, as if its time to live had passed. Its holder learns of it with its next extend, after
     * a third of its TTL at most. Rejects if no lease holds the resource. */
    end(resource: string): Promise<void>;
    /** Lets the service carry out the next request, and then closes the connection instead of passing on the response. Two calls
     * lose the responses to two requests. */
    loseNextResponse(): void;
    /** How many responses were lost. */
    get lost(): number;
    /** Acquires the resources for another process, which holds them until its `release`, or for an hour. Rejects if one of them
     * is held. */
    hold(...resources: string[]): Promise<Other>;
    /** Waits until `n` requests wait for the resource. */
    awaitWaiters(resource: string, n?: number): Promise<void>;
}
