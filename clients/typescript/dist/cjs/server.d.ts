/** One of a client's URLs: a server, or a load balancer before several. */
import { Late } from './batch.js';
import { Fetch } from './platform.js';
/** The failure of a request that got no response. */
export declare class NoAnswer extends Error {
    readonly sent: boolean;
    /** `sent` says whether the server may have seen the request. */
    constructor(why: string, sent: boolean, cause?: unknown);
}
export interface Request {
    readonly operation: string;
    readonly resource: string;
    readonly method: string;
    readonly path: string;
    readonly headers: Record<string, string>;
    readonly body?: string | undefined;
    /** Milliseconds for the request and its response, from when the request is sent. */
    readonly limit: number;
    /** The time of `now` at which the request ends, even if it still waits in this client for its turn. */
    readonly until: number;
    /** It may wait in the queue for its resource. */
    readonly waits: boolean;
    /** For a request that waits in the queue: after how many milliseconds the server is probed. The probe may take as long. */
    readonly probe?: number | undefined;
    /** The caller's signal. When it is aborted, the request rejects with its reason. */
    readonly signal?: AbortSignal | undefined;
    /** Called when the request is sent. */
    readonly sent?: () => void;
    /** Called if this request is given up while its batch continues for others. It gets the outcome to come. */
    readonly late?: ((outcome: Late) => void) | undefined;
}
export interface Answer {
    /** When the request was sent. */
    readonly sent: number;
    readonly body: Record<string, unknown>;
}
export interface Listener {
    /** The stream ends when this signal is aborted. */
    readonly signal: AbortSignal;
    readonly opened: () => void;
    /** Called after each event. */
    readonly heard: () => void;
}
export declare class Server {
    #private;
    readonly url: string;
    constructor(url: string, fetch: Fetch, batchAfter: number);
    /** Whether so many requests wait in queues that polls have to be short, so that all get their turns. */
    get crowded(): boolean;
    /** Sends a request, and rejects with NoAnswer, the error of a refusal, or the reason of its signal. */
    ask(request: Request): Promise<Answer>;
    /** Reads a stream of events until it ends. Gives up if the stream has not begun after `limit` milliseconds. */
    listen(path: string, headers: Record<string, string>, limit: number, { signal, opened, heard }: Listener): Promise<void>;
}
/** The JSON object that a text is, if it is one. */
export declare function parse(text: string): Record<string, unknown> | undefined;
