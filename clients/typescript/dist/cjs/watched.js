"use strict";
Object.defineProperty(exports, "__esModule", { value: true });
exports.Watched = void 0;
/** What a watch has reported of a resource. */
class Watched {
    #last = '';
    #newest = 0;
    /** Notes a lock, undefined for an unknown one, and says whether it is to be reported. With few
     * nodes that answer, one may show that was released: tokens never fall. */
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
