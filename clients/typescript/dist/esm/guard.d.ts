/** Presents a lease's token to the guard in Postgres (docs/reference/guard.md), through node-postgres. */
import { Lease } from './lease.js';
/** A client of `pg`. */
export interface PgClient {
    query(text: string, values?: any[]): Promise<any>;
}
/** A pool of `pg`. */
export interface PgPool<C extends PgClient = PgClient> {
    readonly totalCount: number;
    connect(): Promise<C & {
        release(broken?: boolean): void;
    }>;
}
/** Runs work in a transaction that has claimed the lease's resources with their tokens before
 * anything else, so that what it reads is at least as new as the last write of any earlier holder.
 * It commits when work resolves, and rolls back when it rejects.
 *
 * `db` is a `Pool` of pg, or a client that is in no transaction. Work writes through the client that it gets.
 *
 * Rejects with LeaseLost if the lease is lost, at the beginning or before the commit, and with
 * StaleToken if the guard has seen a larger token; nothing is written then. Other errors are pg's: those with the code
 * 40001, 40P01 and 55P03 may be repeated while the lease is held. After an error of the commit itself the transaction may
 * have taken effect.
 *
 * The transaction's lock_timeout is what the lease was valid for when it began, and its
 * idle_in_transaction_session_timeout is the TTL. */
export declare function fenced<C extends PgClient, T>(db: PgPool<C> | C, lease: Lease, work: (client: C) => Promise<T> | T): Promise<T>;
