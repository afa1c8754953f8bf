"use strict";
Object.defineProperty(exports, "__esModule", { value: true });
exports.Watched = void 0;
/** What a watch has reported of a resource. */
class Watched {
    #last = '';
    #newest = 0;
    /** Notes the state of a lock (undefined if it is unknown), and says whether the watch has to report it. While
     * few nodes respond, an earlier lease may show that was released; its smaller token gives it away. */
    isNews(lock) {
        const { held = undefined, token = 0 } = lock ?? {};
        if (held && token < this.#newest)
            return false;
        if (held)
            this.#newest = token;
        const before = this.#last;
        this.#last = `${held} ${token}`;
        return this.#last !== before;
    }
}
exports.Watched = Watched;
