/** Presents a lease's tokens to the guard in Postgres or MariaDB (docs/reference/guard.md), through pg, mysql2 or mysql. */
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
/** A connection of `mysql2/promise`, `mysql2` or `mysql`. */
export interface MysqlConnection {
    beginTransaction(...args: any[]): any;
    query(...args: any[]): any;
    destroy(): void;
}
/** A pool of `mysql2/promise`, whose `getConnection` returns a promise. */
export interface MysqlPool<C extends MysqlConnection = MysqlConnection> {
    getConnection(): Promise<C & {
        release(): void;
    }>;
}
/** A pool of `mysql2` or `mysql`, whose `getConnection` takes a callback. */
export interface MysqlCallbackPool<C extends MysqlConnection = MysqlConnection> {
    getConnection(done: (error: any, connection: C & {
        release(): void;
    }) => any): void;
}
declare type Work<C, T> = (client: C) => Promise<T> | T;
/** Runs work in a transaction that first claims the lease's resources with their tokens, so that
 * work reads data at least as new as the last write of any earlier holder.
 * The transaction commits when work resolves, and rolls back when work rejects.
 *
 * `db` is a pool of pg, of mysql2 (also `mysql2/promise`) or of mysql, or a client of such a pool that is not in a transaction.
 * Work has to write through the client that it gets.
 *
 * Rejects with LeaseLost if the lease is lost, at the beginning or before the commit, and with
 * StaleToken if the guard has seen a larger token; nothing is written then. Rejects with Refused if the guard refuses for
 * another reason, or if the database has no guard. Other errors come from the driver. After those with the code
 * 40001, 40P01 and 55P03, and of MariaDB 1020, 1205 and 1213, the transaction may be repeated while the lease is held. After an
 * error of the commit itself the transaction may have taken effect.
 *
 * A holder that is paused in its transaction does not keep the next one waiting for long. In Postgres the transaction's
 * lock_timeout is the time for which the lease is valid at the claim, and its idle_in_transaction_session_timeout is a second
 * more. In MariaDB the claim waits for that time at most, and idle_transaction_timeout is at most a second more; after the
 * transaction it is set back. */
export declare function fenced<C extends PgClient, T>(db: PgPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends MysqlConnection, T>(db: MysqlPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends MysqlConnection, T>(db: MysqlCallbackPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends MysqlConnection, T>(db: C, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends PgClient, T>(db: C, lease: Lease, work: Work<C, T>): Promise<T>;
/** Translates an error of the guard in a database into the error of this library, also if a query builder or an ORM has wrapped
 * it. Use it in your own transactions that begin with `SELECT fencing.claim(…)`. Returns any other error unchanged. */
export declare function guardError(error: unknown, lease: Lease): unknown;
export {};
