/** What a watch has reported of a resource. */
export class Watched {
  #last = '';
  #newest = 0;

  /** Notes the state of a lock (undefined if it is unknown), and says whether the watch has to report it. While
   * few nodes respond, an earlier lease may show that was released; its smaller token gives it away. */
  isNews(lock: { readonly held: boolean; readonly token: number } | undefined): boolean {
    const { held = undefined, token = 0 } = lock ?? {};
    if (held && token < this.#newest) return false;
    if (held) this.#newest = token;
    const before = this.#last;
    this.#last = `${held} ${token}`;
    return this.#last !== before;
  }
}
