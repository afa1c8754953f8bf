/** Presents a lease's tokens to the guard in Postgres or MariaDB (docs/reference/guard.md), through pg, mysql2 or mysql. */

import { about, FencelockError, LeaseLost, Refused, shown, StaleToken } from './errors.js';
import { Lease, Part } from './lease.js';

/** A client of `pg`. */
export interface PgClient {
  query(text: string, values?: any[]): Promise<any>;
}

/** A pool of `pg`. */
export interface PgPool<C extends PgClient = PgClient> {
  readonly totalCount: number;
  connect(): Promise<C & { release(broken?: boolean): void }>;
}

/** A connection of `mysql2/promise`, `mysql2` or `mysql`. */
export interface MysqlConnection {
  beginTransaction(...args: any[]): any;
  query(...args: any[]): any;
  destroy(): void;
}

/** A pool of `mysql2/promise`, whose `getConnection` returns a promise. */
export interface MysqlPool<C extends MysqlConnection = MysqlConnection> {
  getConnection(): Promise<C & { release(): void }>;
}

/** A pool of `mysql2` or `mysql`, whose `getConnection` takes a callback. */
export interface MysqlCallbackPool<C extends MysqlConnection = MysqlConnection> {
  getConnection(done: (error: any, connection: C & { release(): void }) => any): void;
}

/** Further methods of a client of `pg`, which a wrapper around one may lack. */
interface Events {
  on?(event: string, f: (about: { code?: string }) => void): void;
  off?(event: string, f: unknown): void;
}

type Work<C, T> = (client: C) => Promise<T> | T;

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
export function fenced<C extends PgClient, T>(db: PgPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export function fenced<C extends MysqlConnection, T>(db: MysqlPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export function fenced<C extends MysqlConnection, T>(db: MysqlCallbackPool<C>, lease: Lease, work: Work<C, T>): Promise<T>;
export function fenced<C extends MysqlConnection, T>(db: C, lease: Lease, work: Work<C, T>): Promise<T>;
export function fenced<C extends PgClient, T>(db: C, lease: Lease, work: Work<C, T>): Promise<T>;
export async function fenced<T>(db: object, lease: Lease, work: Work<any, T>): Promise<T> {
  lease.check();
  const { claims, client, release } = await connected(db);
  let broken = true;
  try {
    return await transaction(claims, client, lease, work, () => (broken = false));
  } finally {
    release?.(broken); // a connection that may still be in its transaction is closed
  }
}

/** Translates an error of the guard in a database into the error of this library, also if a query builder or an ORM has wrapped
 * it. Use it in your own transactions that begin with `SELECT fencing.claim(…)`. Returns any other error unchanged. */
export function guardError(error: unknown, lease: Lease): unknown {
  const raw = rawError(error);
  const code = raw && CODES[String(raw.code)] ? String(raw.code) : String(raw?.errno);
  const [kind] = CODES[code] ?? [];
  if (!raw || !kind) return error;
  if (kind === 'late') return lease.loss() ?? error;
  if (kind === 'missing' && !/fencing/.test(String(raw.message))) return error; // another schema or function is missing
  const failure = kind === 'stale' ? staleToken(raw, lease) : refusedByGuard(code, raw, lease);
  failure.cause = error;
  return failure;
}

/** The fields of a driver's error. */
interface RawError {
  readonly code?: unknown;
  readonly errno?: unknown;
  readonly detail?: unknown;
  readonly message?: unknown;
}

/** What the SQLSTATEs of Postgres, and the error numbers of MariaDB, mean here. */
const CODES: Readonly<Record<string, readonly [kind: string, text?: string]>> = {
  LK001: ['stale'],
  31001: ['stale'],
  LK002: ['token-required', 'a protected row was changed whose resource the transaction has not claimed'],
  31002: ['token-required', 'a protected row was changed whose resource the transaction has not claimed'],
  LK003: ['invalid-request', 'the token or the resource is malformed'],
  31003: ['invalid-request', 'the token or the resource is malformed'],
  LK004: ['proof-required', 'the proof of the token is missing or wrong'],
  '3F000': ['missing'], // invalid_schema_name
  42883: ['missing'], // undefined_function
  1305: ['missing'], // ER_SP_DOES_NOT_EXIST
  '55P03': ['late'], // lock_not_available
  1205: ['late'], // ER_LOCK_WAIT_TIMEOUT
};

/** The error of the driver (pg, mysql2 or mysql): Knex passes it on unchanged, TypeORM and Prisma wrap it. */
function rawError(error: unknown): RawError | undefined {
  type Wrapped = RawError & { driverError?: unknown; meta?: unknown; cause?: unknown };
  for (const known of [error, (error as Wrapped)?.driverError, (error as Wrapped)?.meta, (error as Wrapped)?.cause]) {
    const raw = known as RawError | undefined;
    if (raw && (CODES[String(raw.code)] || CODES[String(raw.errno)])) return raw;
  }
  return undefined;
}

function refusedByGuard(code: string, raw: RawError, lease: Lease): FencelockError {
  const [kind, text] = CODES[code] as readonly [Refused['kind'] | 'missing', string?];
  const said = String(raw.message ?? '');
  if (kind === 'missing') {
    const error = new Refused('the database has no guard: run "fencelock guard install"');
    error.kind = 'guard-not-configured';
    return about(error, lease.resource);
  }
  const error = new Refused(`the guard refused the write: ${text}: ${shown(said)}`);
  error.kind = kind;
  return about(error, lease.resource);
}

const IN_MARIADB = /stale fencing token for '(.*)': presented (\d+), highest seen (\d+)$/s;

function staleToken(raw: RawError, lease: Lease): StaleToken {
  const stale = new StaleToken('');
  const [, named, presented, highest] = IN_MARIADB.exec(String(raw.message ?? '')) ?? [];
  let detail: { resource?: unknown; presented?: unknown; highest?: unknown } = { resource: named, presented, highest };
  if (!named) {
    try {
      detail = JSON.parse(String(raw.detail));
    } catch {
      // The error then has no details.
    }
  }
  about(stale, String(detail.resource ?? lease.resource));
  stale.presented = Number(detail.presented ?? 0);
  stale.highest = Number(detail.highest ?? 0);
  stale.message = `the token ${stale.presented || ''} of ${shown(stale.resource)} is stale: the guard has seen ${stale.highest || 'a larger one'}. ${advice(lease)}`;
  return stale;
}

/** What the holder of a stale token should do. A valid lease has the largest token of its cluster, so while the lease is valid
 * only a break or another cluster explains a larger one. */
function advice(lease: Lease): string {
  if (lease.lost) return 'Stop, and acquire again';
  return 'The lease is still valid here: an operator broke it, or another fencelock cluster claims this resource. Stop, and acquire again; if that is refused, too, find the other cluster';
}

/** The statements of one kind of database. */
interface Claims {
  begin(client: any): Promise<void>;
  /** Limits how long the connection may be idle in the transaction, if the claim does not. */
  limit?(client: any, lease: Lease): Promise<unknown>;
  claim(client: any, part: Part, lease: Lease): Promise<unknown>;
  run(client: any, sql: string): Promise<unknown>;
  /** The statement that removes the claim and the limit from the connection after the transaction, if its end does not. */
  readonly forget?: string;
}

interface Connected {
  readonly claims: Claims;
  readonly client: object;
  readonly release?: (broken: boolean) => void;
}

/** A client from the pool `db`, or `db` itself if it is a client. */
async function connected(db: object): Promise<Connected> {
  if ('totalCount' in db) return fromPgPool(db as PgPool);
  if ('getConnection' in db) return fromMysqlPool(db as MysqlPool | MysqlCallbackPool);
  return { claims: 'beginTransaction' in db ? inMariadb : inPostgres, client: db };
}

async function fromPgPool(pool: PgPool): Promise<Connected> {
  const client: PgClient & Events & { release(broken?: boolean): void } = await pool.connect();
  const ignore = () => {}; // an error event without a listener would end the process; the next query rejects anyway
  client.on?.('error', ignore);
  const release = (broken: boolean) => {
    if (!broken) client.off?.('error', ignore);
    client.release(broken);
  };
  return { claims: inPostgres, client, release };
}

async function fromMysqlPool(pool: MysqlPool | MysqlCallbackPool): Promise<Connected> {
  const client = await new Promise<MysqlConnection & { release(): void }>((resolve, reject) => {
    if (promises(pool)) (pool as MysqlPool).getConnection().then(resolve, reject);
    else (pool as MysqlCallbackPool).getConnection((error, connection) => (error ? reject(error) : resolve(connection)));
  });
  return { claims: inMariadb, client, release: (broken) => (broken ? client.destroy() : client.release()) };
}

/** Whether `db` is of mysql2/promise: its objects have a property with the class of their promises. */
function promises(db: object): boolean {
  return 'Promise' in db;
}

/** Runs work in a transaction. Calls `ended` when the client is certainly out of the transaction and without a claim. */
async function transaction<C extends object, T>(claims: Claims, client: C, lease: Lease, work: Work<C, T>, ended: () => void): Promise<T> {
  await claims.begin(client);
  // Called after the end of the transaction: without the limit a holder that is paused in it would keep the rows for the whole pause.
  const forget = async () => void (claims.forget && (await claims.run(client, claims.forget)));
  let value: T;
  try {
    await claims.limit?.(client, lease);
    for (const part of lease.parts) await claims.claim(client, part, lease);
    value = await work(client);
    lease.check();
    await claims.run(client, 'COMMIT');
  } catch (error) {
    await claims.run(client, 'ROLLBACK').then(forget).then(ended, () => {});
    throw error instanceof LeaseLost ? error : guardError(error, lease);
  }
  await forget().then(ended, () => {}); // the commit has succeeded; if this fails, the connection is closed
  return value;
}

const IN_TRANSACTION = '25001'; // active_sql_transaction

function inside(): never {
  throw new TypeError('the client is in a transaction already: what it has read may be older than the claim');
}

/** Milliseconds that a transaction may stay idle after its lease has ended. A holder that resumes in this time gets LeaseLost
 * and not the error of a broken connection. */
const IDLE_GRACE = 1000;

const milliseconds = (n: number) => String(Math.max(1, Math.floor(n)));

const inPostgres: Claims = {
  /** Refuses a client that is in a transaction. Postgres only sends a warning about a BEGIN inside one. */
  async begin(client: PgClient & Events): Promise<void> {
    let warned = false;
    const notice = ({ code }: { code?: string }) => void (warned ||= code === IN_TRANSACTION);
    client.on?.('notice', notice);
    try {
      await client.query('BEGIN');
    } finally {
      client.off?.('notice', notice);
    }
    if (warned) inside();
  },

  /** Claims a resource, and limits the transaction: none of its statements waits for a lock after the lease may
   * have ended, and a holder that hangs in it does not hold up the next one. */
  async claim(client: PgClient, part: Part, lease: Lease): Promise<void> {
    const values: unknown[] = [milliseconds(lease.validity), milliseconds(lease.validity + IDLE_GRACE), part.resource, part.token];
    if (part.proof) values.push(part.proof);
    const presented = part.proof ? '$3, $4, $5' : '$3, $4';
    const settings = "set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)";
    await client.query(`SELECT ${settings}, fencing.claim(${presented})`, values);
  },

  run: (client: PgClient, sql) => client.query(sql),
};

const inMariadb: Claims & { rows(client: MysqlConnection, sql: string, values?: unknown[]): Promise<unknown> } = {
  forget:
    'SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout), ' +
    'SESSION idle_write_transaction_timeout = IFNULL(@fencing_idle_write, @@idle_write_transaction_timeout), ' +
    'SESSION idle_readonly_transaction_timeout = IFNULL(@fencing_idle_read, @@idle_readonly_transaction_timeout), ' +
    '@fencing_idle = NULL, @fencing_idle_write = NULL, @fencing_idle_read = NULL',

  async begin(client: MysqlConnection): Promise<void> {
    const [row] = (await this.rows(client, 'SELECT @@in_transaction AS busy')) as { busy: number }[];
    if (row?.busy) inside();
    await this.run(client, 'START TRANSACTION');
  },

  /** Limits how long the session may be idle in the transaction. If the session has a shorter limit, that stays. MariaDB
   * has two more limits, for transactions that have written and for those that have not: one that is not 0 counts instead. */
  limit(client: MysqlConnection, lease: Lease): Promise<unknown> {
    const seconds = Math.max(1, Math.ceil((lease.validity + IDLE_GRACE) / 1000));
    const limit = `IF(@@idle_transaction_timeout BETWEEN 1 AND ${seconds}, @@idle_transaction_timeout, ${seconds})`;
    const least = (name: string) => `SESSION ${name} = LEAST(@@${name}, ${seconds})`;
    return this.run(
      client,
      'SET @fencing_idle = @@idle_transaction_timeout, @fencing_idle_write = @@idle_write_transaction_timeout, ' +
        `@fencing_idle_read = @@idle_readonly_transaction_timeout, SESSION idle_transaction_timeout = ${limit}, ` +
        `${least('idle_write_transaction_timeout')}, ${least('idle_readonly_transaction_timeout')}`,
    );
  },

  claim(client: MysqlConnection, part: Part, lease: Lease): Promise<unknown> {
    const seconds = Math.max(1, Math.ceil(lease.validity / 1000));
    return this.rows(client, 'SET STATEMENT innodb_lock_wait_timeout = ? FOR SELECT fencing_claim(?, ?)', [seconds, part.resource, part.token]);
  },

  run(client: MysqlConnection, sql): Promise<unknown> {
    return this.rows(client, sql);
  },

  rows(client: MysqlConnection, sql, values = []): Promise<unknown> {
    if (promises(client)) return client.query(sql, values).then(([rows]: [unknown]) => rows);
    return new Promise((resolve, reject) => client.query(sql, values, (error: unknown, rows: unknown) => (error ? reject(error) : resolve(rows))));
  },
};
