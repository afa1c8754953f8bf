"use strict";
/** What the service reports about locks and guarded records. Times are in milliseconds. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.attempt = exports.guardedRecord = exports.lockState = void 0;
function lockState(of) {
    const queue = of['queue'] ?? [];
    return {
        resource: String(of['resource']),
        held: Boolean(of['held']),
        holder: String(of['holder'] ?? ''),
        token: Number(of['fencing_token'] ?? 0),
        remaining: Number(of['remaining_ms'] ?? 0),
        ttl: Number(of['ttl_ms'] ?? 0),
        heldFor: Number(of['held_ms'] ?? 0),
        metadata: of['metadata'] ?? null,
        waiters: Number(of['waiters'] ?? 0),
        queue: queue.map((w) => ({ holder: String(w['holder'] ?? ''), waiting: Number(w['waiting_ms'] ?? 0) })),
    };
}
exports.lockState = lockState;
function guardedRecord(of) {
    return { resource: String(of['resource']), highestToken: Number(of['highest_token'] ?? 0), value: of['value'] ?? null, version: Number(of['version'] ?? 0) };
}
exports.guardedRecord = guardedRecord;
function attempt(of) {
    return {
        token: Number(of['fencing_token']),
        highest: Number(of['highest_token']),
        kind: String(of['kind']),
        accepted: Boolean(of['accepted']),
        version: Number(of['version'] ?? 0),
        at: new Date(String(of['at'])),
    };
}
exports.attempt = attempt;
