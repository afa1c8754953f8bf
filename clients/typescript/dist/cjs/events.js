"use strict";
/** The service's events about a resource, for a watch. An event is only a reason to look at the resource, since any may be missing. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.Events = void 0;
const clock_js_1 = require("./clock.js");
const LOOK_EVERY = 10000; // milliseconds between two looks while a stream of events is open
const LOOK_BLIND = 1000; // the same while no stream is open
class Events {
    #calls;
    #resource;
    #stop = new AbortController(); // ends the stream
    #listening = false;
    #open = false;
    #heard = false; // an event has come since the last look
    #wake; // ends a wait
    constructor(calls, resource) {
        this.#calls = calls;
        this.#resource = resource;
    }
    /** Resolves when it is time to look at the resource. Rejects with the signal's reason when that is aborted. The first call
     * opens the stream. */
    async wait(signal) {
        if (!this.#listening) {
            this.#listening = true;
            this.#calls.inBackground(() => this.#listen());
        }
        const woken = new AbortController();
        this.#wake = () => woken.abort(this);
        const giveUp = () => woken.abort(signal.reason);
        signal.addEventListener('abort', giveUp, { once: true });
        try {
            signal.throwIfAborted();
            if (!this.#heard)
                await (0, clock_js_1.sleep)(this.#open ? LOOK_EVERY : LOOK_BLIND, woken.signal);
        }
        catch (error) {
            if (error !== this)
                throw error;
        }
        finally {
            this.#wake = undefined;
            this.#heard = false;
            signal.removeEventListener('abort', giveUp);
        }
    }
    /** Ends the stream. */
    close() {
        this.#stop.abort();
    }
    /** Keeps a stream open, at one server after the other. */
    async #listen() {
        const { signal } = this.#stop;
        const heard = () => {
            this.#heard = true;
            this.#wake?.();
        };
        const opened = () => {
            this.#open = true;
            heard(); // the stream does not show what happened before
        };
        for (let n = 0; !signal.aborted; n++) {
            await this.#calls.listen(n, `/events?resource=${encodeURIComponent(this.#resource)}`, { signal, opened, heard }).catch(() => { });
            if (this.#open)
                heard();
            this.#open = false;
            await (0, clock_js_1.sleep)(LOOK_BLIND, signal).catch(() => { });
        }
    }
}
exports.Events = Events;
