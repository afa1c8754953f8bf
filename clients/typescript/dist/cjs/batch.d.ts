/** Calls made at the same time share requests, since most of the cost of a call is its request. The first `batchAfter` calls to
 * a server are sent as single requests. While these are under way, further extends, releases, and acquires that do not wait in
 * the queue gather. They are sent together as one POST /locks/batch when a request under way has ended, or after 5 ms.
 *
 * For its caller a call in a batch is like one that is sent alone: it has its own key, time limit and outcome. When a caller
 * gives up, the batch continues for the others, and the client ends what that call was granted when the response arrives. The
 * request is aborted when all its callers have given up. If a server, or a proxy, refuses the batch as a whole, the client
 * sends it single requests for a minute. */
export declare const BATCH_AFTER = 2;
/** A server's response. */
export interface Reply {
    readonly sent: number;
    readonly status: number;
    readonly text: string;
    readonly retryAfter: string;
    readonly requestId: string;
    readonly location: string;
}
/** A call as an element of a batch. */
export interface Operation {
    readonly text: string;
    readonly authorization: string;
}
/** The outcome of a call whose caller has given up: the response, or undefined if the server did not carry the call out.
 * Rejects if there was no response. */
export declare type Late = Promise<Reply | undefined>;
/** Returned for a call that is not sent in a batch: the caller has to send it as a single request. */
export declare const ALONE: unique symbol;
/** The element of a batch for a request; undefined if the request cannot be sent in a batch. */
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
    /** Returns the response to an operation from its batch, or ALONE. After ALONE the caller sends the operation as a single
     * request, and calls `ended` when that request is over. When `signal` is aborted, `gather` rejects with its reason. It then
     * calls `left`: with the outcome to come if the batch continues for others, with undefined if the operation was not sent. */
    gather(operation: Operation, signal: AbortSignal, left: (late: Late | undefined) => void, sent: () => void): Promise<Reply | typeof ALONE>;
    /** Notes that a request has ended, and sends what has gathered if there is room for it. */
    ended(): void;
}
