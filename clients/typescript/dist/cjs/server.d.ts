/** One of a client's URLs: a server, or a load balancer before several. */
import { Late } from './batch.js';
import { Fetch } from './platform.js';
/** A request that came to nothing. */
export declare class NoAnswer extends Error {
    readonly sent: boolean;
    /** `sent` says that the server may have seen it. */
    constructor(why: string, sent: boolean, cause?: unknown);
}
export interface Request {
    readonly operation: string;
    readonly resource: string;
    readonly method: string;
    readonly path: string;
    readonly headers: Record<string, string>;
    readonly body?: string | undefined;
    /** Milliseconds for all of it, from when it is sent. */
    readonly limit: number;
    /** When it is over, though it has not been sent yet: it may wait for its turn at the server. */
    readonly until: number;
    /** It may wait in the queue for its resource. */
    readonly waits: boolean;
    /** If it waits in the queue: after how long the server is probed, which has as long to answer. */
    readonly probe?: number | undefined;
    /** The caller's; aborted, the request rejects with its reason. */
    readonly signal?: AbortSignal | undefined;
    /** Called when it is sent. */
    readonly sent?: () => void;
    /** Gets the outcome of a try that was given up in a batch which others wait for. */
    readonly late?: ((outcome: Late) => void) | undefined;
}
export interface Answer {
    /** When the request was sent. */
    readonly sent: number;
    readonly body: Record<string, unknown>;
}
export interface Listener {
    /** Aborted, the stream ends. */
    readonly signal: AbortSignal;
    readonly opened: () => void;
    /** Called after each event. */
    readonly heard: () => void;
}
export declare class Server {
    #private;
    readonly url: string;
    constructor(url: string, fetch: Fetch, batchAfter: number);
    /** Whether polls are to be short, so that all get their turns. */
    get crowded(): boolean;
    /** Sends a request, and rejects with NoAnswer, the error of a refusal, or the reason of its signal. */
    ask(request: Request): Promise<Answer>;
    /** Reads a stream of events until it ends. It begins within `limit`, or not at all. */
    listen(path: string, headers: Record<string, string>, limit: number, { signal, opened, heard }: Listener): Promise<void>;
}
/** The JSON object that a text is, if it is one. */
export declare function parse(text: string): Record<string, unknown> | undefined;
