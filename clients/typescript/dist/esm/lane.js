import { onAbort } from './clock.js';
/** Bounds the requests under way to a server, each of which has a connection of its own. Further requests wait for their turn. */
export class Lane {
    size;
    #free;
    #waiting = []; // in the order of their turns
    constructor(size) {
        this.size = size;
        this.#free = size;
    }
    /** Whether more than half of the lane is in use. */
    get crowded() {
        return this.#free < this.size / 2;
    }
    /** Waits for a turn, which the caller ends with `leave`. Rejects with the signal's reason when that is aborted first. */
    async enter(signal) {
        signal.throwIfAborted();
        if (this.#free > 0) {
            this.#free--;
            return;
        }
        await new Promise((resolve, reject) => {
            const turn = () => {
                unhook();
                resolve();
            };
            const unhook = onAbort(signal, (reason) => {
                this.#waiting = this.#waiting.filter((other) => other !== turn);
                reject(reason);
            });
            this.#waiting.push(turn);
        });
    }
    /** Ends a turn, and gives it to the next. */
    leave() {
        const next = this.#waiting.shift();
        if (next)
            next();
        else
            this.#free++;
    }
}
