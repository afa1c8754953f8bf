/** What a watch has reported of a resource. */
export declare class Watched {
    #private;
    /** Notes a lock, undefined for an unknown one, and says whether it is to be reported. With few
     * nodes that answer, one may show that was released: tokens never fall. */
    isNews(lock: {
        readonly held: boolean;
        readonly token: number;
    } | undefined): boolean;
}
