/** Presents a lease's tokens to the guard in Postgres or MariaDB (docs/reference/guard.md), through pg, mysql2 or mysql. */
import { about, LeaseLost, Refused, shown, StaleToken } from './errors.js';
export async function fenced(db, lease, work) {
    lease.check();
    const { claims, client, release } = await connected(db);
    let broken = true;
    try {
        return await transaction(claims, client, lease, work, () => (broken = false));
    }
    finally {
        release?.(broken); // a connection that may still be in its transaction is closed
    }
}
/** Translates an error of the guard in a database into the error of this library, also if a query builder or an ORM has wrapped
 * it. Use it in your own transactions that begin with `SELECT fencing.claim(…)`. Returns any other error unchanged. */
export function guardError(error, lease) {
    const raw = rawError(error);
    const code = raw && CODES[String(raw.code)] ? String(raw.code) : String(raw?.errno);
    const [kind] = CODES[code] ?? [];
    if (!raw || !kind)
        return error;
    if (kind === 'late')
        return lease.loss() ?? error;
    if (kind === 'missing' && !/fencing/.test(String(raw.message)))
        return error; // another schema or function is missing
    const failure = kind === 'stale' ? staleToken(raw, lease) : refusedByGuard(code, raw, lease);
    failure.cause = error;
    return failure;
}
/** What the SQLSTATEs of Postgres, and the error numbers of MariaDB, mean here. */
const CODES = {
    LK001: ['stale'],
    31001: ['stale'],
    LK002: ['token-required', 'a protected row was changed whose resource the transaction has not claimed'],
    31002: ['token-required', 'a protected row was changed whose resource the transaction has not claimed'],
    LK003: ['invalid-request', 'the token or the resource is malformed'],
    31003: ['invalid-request', 'the token or the resource is malformed'],
    LK004: ['proof-required', 'the proof of the token is missing or wrong'],
    '3F000': ['missing'],
    42883: ['missing'],
    1305: ['missing'],
    '55P03': ['late'],
    1205: ['late'], // ER_LOCK_WAIT_TIMEOUT
};
/** The error of the driver (pg, mysql2 or mysql): Knex passes it on unchanged, TypeORM and Prisma wrap it. */
function rawError(error) {
    for (const known of [error, error?.driverError, error?.meta, error?.cause]) {
        const raw = known;
        if (raw && (CODES[String(raw.code)] || CODES[String(raw.errno)]))
            return raw;
    }
    return undefined;
}
function refusedByGuard(code, raw, lease) {
    const [kind, text] = CODES[code];
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
function staleToken(raw, lease) {
    const stale = new StaleToken('');
    const [, named, presented, highest] = IN_MARIADB.exec(String(raw.message ?? '')) ?? [];
    let detail = { resource: named, presented, highest };
    if (!named) {
        try {
            detail = JSON.parse(String(raw.detail));
        }
        catch {
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
function advice(lease) {
    if (lease.lost)
        return 'Stop, and acquire again';
    return 'The lease is still valid here: an operator broke it, or another fencelock cluster claims this resource. Stop, and acquire again; if that is refused, too, find the other cluster';
}
/** A client from the pool `db`, or `db` itself if it is a client. */
async function connected(db) {
    if ('totalCount' in db)
        return fromPgPool(db);
    if ('getConnection' in db)
        return fromMysqlPool(db);
    return { claims: 'beginTransaction' in db ? inMariadb : inPostgres, client: db };
}
async function fromPgPool(pool) {
    const client = await pool.connect();
    const ignore = () => { }; // an error event without a listener would end the process; the next query rejects anyway
    client.on?.('error', ignore);
    const release = (broken) => {
        if (!broken)
            client.off?.('error', ignore);
        client.release(broken);
    };
    return { claims: inPostgres, client, release };
}
async function fromMysqlPool(pool) {
    const client = await new Promise((resolve, reject) => {
        if (promises(pool))
            pool.getConnection().then(resolve, reject);
        else
            pool.getConnection((error, connection) => (error ? reject(error) : resolve(connection)));
    });
    return { claims: inMariadb, client, release: (broken) => (broken ? client.destroy() : client.release()) };
}
/** Whether `db` is of mysql2/promise: its objects have a property with the class of their promises. */
function promises(db) {
    return 'Promise' in db;
}
/** Runs work in a transaction. Calls `ended` when the client is certainly out of the transaction and without a claim. */
async function transaction(claims, client, lease, work, ended) {
    await claims.begin(client);
    // Called after the end of the transaction: without the limit a holder that is paused in it would keep the rows for the whole pause.
    const forget = async () => void (claims.forget && (await claims.run(client, claims.forget)));
    let value;
    try {
        await claims.limit?.(client, lease);
        for (const part of lease.parts)
            await claims.claim(client, part, lease);
        value = await work(client);
        lease.check();
        await claims.run(client, 'COMMIT');
    }
    catch (error) {
        await claims.run(client, 'ROLLBACK').then(forget).then(ended, () => { });
        throw error instanceof LeaseLost ? error : guardError(error, lease);
    }
    await forget().then(ended, () => { }); // the commit has succeeded; if this fails, the connection is closed
    return value;
}
const IN_TRANSACTION = '25001'; // active_sql_transaction
function inside() {
    throw new TypeError('the client is in a transaction already: what it has read may be older than the claim');
}
/** Milliseconds that a transaction may stay idle after its lease has ended. A holder that resumes in this time gets LeaseLost
 * and not the error of a broken connection. */
const IDLE_GRACE = 1000;
const milliseconds = (n) => String(Math.max(1, Math.floor(n)));
const inPostgres = {
    /** Refuses a client that is in a transaction. Postgres only sends a warning about a BEGIN inside one. */
    async begin(client) {
        let warned = false;
        const notice = ({ code }) => void (warned ||= code === IN_TRANSACTION);
        client.on?.('notice', notice);
        try {
            await client.query('BEGIN');
        }
        finally {
            client.off?.('notice', notice);
        }
        if (warned)
            inside();
    },
    /** Claims a resource, and limits the transaction: none of its statements waits for a lock after the lease may
     * have ended, and a holder that hangs in it does not hold up the next one. */
    async claim(client, part, lease) {
        const values = [milliseconds(lease.validity), milliseconds(lease.validity + IDLE_GRACE), part.resource, part.token];
        if (part.proof)
            values.push(part.proof);
        const presented = part.proof ? '$3, $4, $5' : '$3, $4';
        const settings = "set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)";
        await client.query(`SELECT ${settings}, fencing.claim(${presented})`, values);
    },
    run: (client, sql) => client.query(sql),
};
const inMariadb = {
    forget: 'SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout), ' +
        'SESSION idle_write_transaction_timeout = IFNULL(@fencing_idle_write, @@idle_write_transaction_timeout), ' +
        'SESSION idle_readonly_transaction_timeout = IFNULL(@fencing_idle_read, @@idle_readonly_transaction_timeout), ' +
        '@fencing_idle = NULL, @fencing_idle_write = NULL, @fencing_idle_read = NULL',
    async begin(client) {
        const [row] = (await this.rows(client, 'SELECT @@in_transaction AS busy'));
        if (row?.busy)
            inside();
        await this.run(client, 'START TRANSACTION');
    },
    /** Limits how long the session may be idle in the transaction. If the session has a shorter limit, that stays. MariaDB
     * has two more limits, for transactions that have written and for those that have not: one that is not 0 counts instead. */
    limit(client, lease) {
        const seconds = Math.max(1, Math.ceil((lease.validity + IDLE_GRACE) / 1000));
        const limit = `IF(@@idle_transaction_timeout BETWEEN 1 AND ${seconds}, @@idle_transaction_timeout, ${seconds})`;
        const least = (name) => `SESSION ${name} = LEAST(@@${name}, ${seconds})`;
        return this.run(client, 'SET @fencing_idle = @@idle_transaction_timeout, @fencing_idle_write = @@idle_write_transaction_timeout, ' +
            `@fencing_idle_read = @@idle_readonly_transaction_timeout, SESSION idle_transaction_timeout = ${limit}, ` +
            `${least('idle_write_transaction_timeout')}, ${least('idle_readonly_transaction_timeout')}`);
    },
    claim(client, part, lease) {
        const seconds = Math.max(1, Math.ceil(lease.validity / 1000));
        return this.rows(client, 'SET STATEMENT innodb_lock_wait_timeout = ? FOR SELECT fencing_claim(?, ?)', [seconds, part.resource, part.token]);
    },
    run(client, sql) {
        return this.rows(client, sql);
    },
    rows(client, sql, values = []) {
        if (promises(client))
            return client.query(sql, values).then(([rows]) => rows);
        return new Promise((resolve, reject) => client.query(sql, values, (error, rows) => (error ? reject(error) : resolve(rows))));
    },
};
