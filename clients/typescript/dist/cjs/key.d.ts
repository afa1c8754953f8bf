/** A key that cannot be guessed. */
export declare function randomKey(): Promise<string>;
