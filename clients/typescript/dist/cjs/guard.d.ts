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
/** A pool of one of them whose `getConnection` gives a promise: `mysql2/promise`. */
export interface MysqlPool<C extends MysqlConnection = MysqlConnection> {
    getConnection(): Promise<C & {
        release(): void;
    }>;
}
/** A pool of `mysql2` or `mysql`. */
export interface MysqlCallbackPool<C extends MysqlConnection = MysqlConnection> {
    getConnection(done: (error: any, connection: C & {
        release(): void;
    }) => any): void;
}
declare type Work<C, T> = (client: C) => Promise<T> | T;
/** Runs work in a transaction that has claimed the lease's resources with their tokens before
 * anything else, so that what it reads is at least as new as the last write of any earlier holder.
 * It commits when work resolves, and rolls back when it rejects.
 *
 * `db` is a pool of pg, of mysql2 (also `mysql2/promise`) or of mysql, or a client of one that is in no transaction.
 * Work writes through the client that it gets.
 *
 * Rejects with LeaseLost if the lease is lost, at the beginning or before the commit, and with
 * StaleToken if the guard has seen a larger token; nothing is written then. With Refused for what the guard refuses besides, and if the database has none. Other errors are the driver's: those with the code
 * 40001, 40P01 and 55P03, and of MariaDB 1020, 1205 and 1213, may be repeated while the lease is held. After an error of the commit itself the transaction may
 * have taken effect.
 *
 * In Postgres the transaction's lock_timeout is what the lease was valid for when it began, and its
 * idle_in_transaction_session_timeout a second more; in MariaDB the claim waits no longer than that, and idle_transaction_timeout
 * is at most a second more until the transaction has ended, and then what it was. So a holder that is paused in its transaction does not keep the next one waiting. */
export declare function fenced<C extends PgClient, T>(db: PgPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends MysqlConnection, T>(db: MysqlPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends MysqlConnection, T>(db: MysqlCallbackPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends MysqlConnection, T>(db: C, lease: Lease, work: Work<C, T>): Promise<T>;
export declare function fenced<C extends PgClient, T>(db: C, lease: Lease, work: Work<C, T>): Promise<T>;
/** The error of this library that an error of a database means, also one that a query builder or an ORM has wrapped: for
 * transactions of your own that began with `SELECT fencing.claim(…)`. Any other error as it is. */
export declare function guardError(error: unknown, lease: Lease): unknown;
export {};
