/** What a watch has reported of a resource. */
export declare class Watched {
    #private;
    /** Notes the state of a lock (undefined if it is unknown), and says whether the watch has to report it. While
     * few nodes respond, an earlier lease may show that was released; its smaller token gives it away. */
    isNews(lock: {
        readonly held: boolean;
        readonly token: number;
    } | undefined): boolean;
}
