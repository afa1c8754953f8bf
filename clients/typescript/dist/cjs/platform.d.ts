/** Types of the platform as the application's compiler knows them: from the DOM's library, or from Node's types. With
 * neither, they are minimal interfaces with the methods that this library calls. */
declare type Global = typeof globalThis;
interface LeastSignal {
    readonly aborted: boolean;
    readonly reason: any;
    throwIfAborted(): void;
    addEventListener(type: 'abort', listener: (event: any) => void, options?: {
        once?: boolean;
    }): void;
    removeEventListener(type: 'abort', listener: (event: any) => void): void;
}
interface LeastResponse {
    readonly status: number;
    readonly headers: {
        get(name: string): string | null;
        has(name: string): boolean;
    };
    readonly body: any;
    text(): Promise<string>;
}
/** An AbortSignal. */
export declare type Signal = Global extends {
    AbortSignal: {
        prototype: infer S;
    };
} ? S : LeastSignal;
/** The second argument of fetch. */
export declare type RequestOptions = Global extends {
    fetch(url: any, init?: infer I): any;
} ? NonNullable<I> : {
    method: string;
    headers: Record<string, string>;
    body?: string;
    signal: Signal;
    redirect: string;
};
/** The response that fetch resolves to. */
export declare type Responded = Global extends {
    fetch(...given: any[]): Promise<infer R>;
} ? R : LeastResponse;
/** A fetch as browsers and Node have it. */
export declare type Fetch = (url: string, init: RequestOptions) => Promise<Responded>;
export {};
