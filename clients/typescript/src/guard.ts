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

/** A pool of one of them whose `getConnection` gives a promise: `mysql2/promise`. */
export interface MysqlPool<C extends MysqlConnection = MysqlConnection> {
  getConnection(): Promise<C & { release(): void }>;
}

/** A pool of `mysql2` or `mysql`. */
export interface MysqlCallbackPool<C extends MysqlConnection = MysqlConnection> {
  getConnection(done: (error: any, connection: C & { release(): void }) => any): void;
}

/** What a client of `pg` has besides. */
interface Events {
  on?(event: string, f: (about: { code?: string }) => void): void;
  off?(event: string, f: unknown): void;
}

type Work<C, T> = (client: C) => Promise<T> | T;

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
    release?.(broken); // what did not end its transaction is closed
  }
}

/** The error of this library that an error of a database means, also one that a query builder or an ORM has wrapped: for
 * transactions of your own that began with `SELECT fencing.claim(…)`. Any other error as it is. */
export function guardError(error: unknown, lease: Lease): unknown {
  const raw = rawError(error);
  const code = raw && CODES[String(raw.code)] ? String(raw.code) : String(raw?.errno);
  const [kind] = CODES[code] ?? [];
  if (!raw || !kind) return error;
  if (kind === 'late') return lease.loss() ?? error;
  if (kind === 'missing' && !/fencing/.test(String(raw.message))) return error; // of another schema or function
  const failure = kind === 'stale' ? staleToken(raw, lease) : refusedByGuard(code, raw, lease);
  failure.cause = error;
  return failure;
}

/** What a driver says of a failure. */
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

/** The innermost error that a database gave: pg, mysql2, mysql; Knex passes them on, TypeORM and Prisma wrap them. */
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
      // Without the details.
    }
  }
  about(stale, String(detail.resource ?? lease.resource));
  stale.presented = Number(detail.presented ?? 0);
  stale.highest = Number(detail.highest ?? 0);
  stale.message = `the token ${stale.presented || ''} of ${shown(stale.resource)} is stale: the guard has seen ${stale.highest || 'a larger one'}. ${advice(lease)}`;
  return stale;
}

/** A valid lease has the largest token of its cluster. */
function advice(lease: Lease): string {
  if (lease.lost) return 'Stop, and acquire again';
  return 'The lease is still valid here: an operator broke it, or another fencelock cluster claims this resource. Stop, and acquire again; if that is refused, too, find the other cluster';
}

/** How a kind of database claims. */
interface Claims {
  begin(client: any): Promise<void>;
  /** Limits how long the connection may be idle in the transaction, if the claim does not. */
  limit?(client: any, lease: Lease): Promise<unknown>;
  claim(client: any, part: Part, lease: Lease): Promise<unknown>;
  run(client: any, sql: string): Promise<unknown>;
  /** Takes the claim and the limit from the connection, after the transaction. */
  readonly forget?: string;
}

interface Connected {
  readonly claims: Claims;
  readonly client: object;
  readonly release?: (broken: boolean) => void;
}

/** A client, of the pool if it is one. */
async function connected(db: object): Promise<Connected> {
  if ('totalCount' in db) return fromPgPool(db as PgPool);
  if ('getConnection' in db) return fromMysqlPool(db as MysqlPool | MysqlCallbackPool);
  return { claims: 'beginTransaction' in db ? inMariadb : inPostgres, client: db };
}

async function fromPgPool(pool: PgPool): Promise<Connected> {
  const client: PgClient & Events & { release(broken?: boolean): void } = await pool.connect();
  const ignore = () => {}; // the next query rejects; an error event that has no listener ends the process
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

/** Whether it is of mysql2/promise, whose objects have the promises that they make. */
function promises(db: object): boolean {
  return 'Promise' in db;
}

/** Tells through `ended` that the client is in no transaction any more, and has no claim. */
async function transaction<C extends object, T>(claims: Claims, client: C, lease: Lease, work: Work<C, T>, ended: () => void): Promise<T> {
  await claims.begin(client);
  // Not before the end of the transaction: a holder that is paused between the two would keep the rows for as long as its pause lasts.
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
  await forget().then(ended, () => {}); // it has committed, whatever becomes of the connection
  return value;
}

const IN_TRANSACTION = '25001'; // active_sql_transaction

function inside(): never {
  throw new TypeError('the client is in a transaction already: what it has read may be older than the claim');
}

/** Milliseconds more than the lease is valid for: who comes to its end in that time learns of the loss, not of a broken connection. */
const IDLE_GRACE = 1000;

const milliseconds = (n: number) => String(Math.max(1, Math.floor(n)));

const inPostgres: Claims = {
  /** Postgres only warns of a transaction in a transaction. */
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

  /** Claims, and sees to it that nothing in the transaction waits for a lock when the lease may
   * have ended, and that a holder which hangs in it does not hold up the next one. */
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
  forget: 'SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout), @fencing_idle = NULL',

  async begin(client: MysqlConnection): Promise<void> {
    const [row] = (await this.rows(client, 'SELECT @@in_transaction AS busy')) as { busy: number }[];
    if (row?.busy) inside();
    await this.run(client, 'START TRANSACTION');
  },

  /** A shorter limit of the session stays. */
  limit(client: MysqlConnection, lease: Lease): Promise<unknown> {
    const seconds = Math.max(1, Math.ceil((lease.validity + IDLE_GRACE) / 1000));
    const limit = `IF(@@idle_transaction_timeout BETWEEN 1 AND ${seconds}, @@idle_transaction_timeout, ${seconds})`;
    return this.run(client, `SET @fencing_idle = @@idle_transaction_timeout, SESSION idle_transaction_timeout = ${limit}`);
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
