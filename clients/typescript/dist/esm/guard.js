/** Presents a lease's token to the guard in Postgres (docs/reference/guard.md), through node-postgres. */
import { about, StaleToken } from './errors.js';
const STALE = 'LK001';
const WAITED_TOO_LONG = '55P03'; // lock_not_available
const IN_TRANSACTION = '25001'; // active_sql_transaction
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
export async function fenced(db, lease, work) {
    lease.check();
    if (!isPool(db))
        return transaction(db, lease, work);
    const client = await db.connect();
    const ignore = () => { }; // the next query rejects; an error event that has no listener ends the process
    client.on?.('error', ignore);
    let broken = true;
    try {
        return await transaction(client, lease, work, () => (broken = false));
    }
    finally {
        if (!broken)
            client.off?.('error', ignore);
        client.release(broken); // what did not end its transaction is closed
    }
}
function isPool(db) {
    return 'totalCount' in db;
}
/** Tells through `ended` that the client is in no transaction any more. */
async function transaction(client, lease, work, ended = () => { }) {
    await begin(client);
    try {
        for (const part of lease.parts)
            await client.query(...claim(part, lease));
        const value = await work(client);
        lease.check();
        await client.query('COMMIT');
        ended();
        return value;
    }
    catch (error) {
        await client.query('ROLLBACK').then(ended, () => { });
        throw translated(error, lease);
    }
}
/** Postgres only warns of a transaction in a transaction. */
async function begin(client) {
    let inside = false;
    const notice = ({ code }) => void (inside ||= code === IN_TRANSACTION);
    client.on?.('notice', notice);
    try {
        await client.query('BEGIN');
    }
    finally {
        client.off?.('notice', notice);
    }
    if (inside)
        throw new TypeError('the client is in a transaction already: what it has read may be older than the claim');
}
/** Claims, and sees to it that nothing in the transaction waits for a lock when the lease may
 * have ended, and that a holder which hangs in it does not hold up the next one. */
function claim(part, lease) {
    const milliseconds = (n) => String(Math.max(1, Math.floor(n)));
    const values = [milliseconds(lease.validity), milliseconds(lease.ttl), part.resource, part.token];
    if (part.proof)
        values.push(part.proof);
    const presented = part.proof ? '$3, $4, $5' : '$3, $4';
    const settings = "set_config('lock_timeout', $1, true), set_config('idle_in_transaction_session_timeout', $2, true)";
    return [`SELECT ${settings}, fencing.claim(${presented})`, values];
}
/** StaleToken for a refusal by the guard, LeaseLost for a wait that has outlived the lease. */
function translated(error, lease) {
    const { code, detail } = error;
    if (code === WAITED_TOO_LONG)
        return lease.loss() ?? error;
    if (code !== STALE)
        return error;
    const stale = about(new StaleToken(`the token of ${lease.resource} is stale: stop, and acquire again`), lease.resource);
    stale.cause = error;
    try {
        const { resource, presented, highest } = JSON.parse(String(detail));
        Object.assign(stale, { resource, presented, highest });
    }
    catch {
        // Without the details.
    }
    return stale;
}
