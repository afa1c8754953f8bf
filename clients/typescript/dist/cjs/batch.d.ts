/** Calls that are made at once share requests, since most of what a call costs is its request. The first calls to a
 * server that are under way are sent as they are; further acquires that do not wait in the queue, extends and releases gather,
 * and are sent together as one POST /locks/batch when one that is under way is answered, or a few milliseconds later. For its caller a call
 * in a batch is like one that is sent alone: it has its own key, time limit and outcome. A caller that gives up leaves
 * the batch to the others, and what it was granted is ended when the batch is answered; the request is aborted when all
 * have left. A server, or a proxy, that refuses the batch as a whole is sent single requests for a minute. */
export declare const BATCH_AFTER = 2;
/** What a server answered. */
export interface Reply {
    readonly sent: number;
    readonly status: number;
    readonly text: string;
    readonly retryAfter: string;
    readonly requestId: string;
    readonly location: string;
}
/** What a call is in a batch. */
export interface Operation {
    readonly text: string;
    readonly authorization: string;
}
/** The outcome of a call whose caller has left: the reply, undefined if it was not done; it rejects if there was no answer. */
export declare type Late = Promise<Reply | undefined>;
/** Why a call has no reply from a batch. */
export declare const ALONE: unique symbol;
/** What a request is in a batch; undefined if it cannot be in one. */
export declare function operationOf({ method, path, headers, body, probe }: {
    method: string;
    path: string;
    headers: Record<string, string>;
    body?: string | undefined;
    probe?: number | undefined;
}): Operation | undefined;
export declare class Batcher {
    #private;
    constructor(after: number, mostBatches: number, refused: {
        until: number;
    }, send: (body: string, authorization: string, signal: AbortSignal) => Promise<Reply>);
    /** The reply to an operation, or ALONE if it is to be sent alone: `ended` must follow then. When `signal` is aborted it
     * rejects with the reason, and `left` gets the outcome if there will be one, undefined if it was not sent. */
    gather(operation: Operation, signal: AbortSignal, left: (late: Late | undefined) => void, sent: () => void): Promise<Reply | typeof ALONE>;
    /** Says that a request is not under way any more. */
    ended(): void;
}
