package io.github.fencelock;

import static io.github.fencelock.Clock.MILLISECOND;
import static io.github.fencelock.Clock.NEVER;
import static io.github.fencelock.Clock.SECOND;
import static io.github.fencelock.Clock.now;

import java.util.concurrent.ThreadLocalRandom;

/** How a call has gone so far, and how long its next try may take. All times are nanoseconds. Only one thread at a time uses it. */
final class Tries {
    static final long FIRST_PAUSE = 50 * MILLISECOND;
    private static final long MAX_PAUSE = SECOND;
    private static final long MAX_POLL_PAUSE = 500 * MILLISECOND; // after a poll without a response: the server keeps its place for two seconds
    private static final long SHORT_POLL = SECOND; // how long a poll waits after one that got no response, or in a crowded lane
    /** An acquire ends this long after its wait. A release after work takes this long at most. */
    static final long GRACE = SECOND;
    /** A release after work that was interrupted takes this long at most. */
    static final long HURRY = 250 * MILLISECOND;
    private static final long SHORTEST_LAST = SECOND; // the last try has this long, even if patience ends earlier
    static final long SHORTEST_TRY = 250 * MILLISECOND;
    /** The time for requests in the background, which end leases and places in the queue. */
    static final long ABANDON = 10 * SECOND;
    private static final long LONGEST_WAIT = 600 * SECOND; // the longest wait that a server accepts in a request

    /** Until when the call may wait in the queue, the longest time of one try without its wait, and when all tries have to be over. */
    record Bounds(long waitUntil, long limit, long deadline) {
        static final Bounds NONE = new Bounds(0, NEVER, NEVER);

        static Bounds until(long deadline) {
            return new Bounds(0, NEVER, deadline);
        }
    }

    /** How much is left of the wait in the queue, and how much of it the next request waits. */
    record Wait(long left, long kept) {}

    /** How long a try may take in addition to its wait, and after how long its server is probed; 0 for never. */
    record Limit(long limit, long probe) {}

    volatile int number;
    /** The number of rounds over all servers in which none gave a final response. */
    int silent;
    /** Whether a failed try may have taken effect. */
    volatile boolean ambiguous;
    /** Whether the deadline has ended the call, and not its patience. */
    volatile boolean late;
    /** Whether a poll without a grant has left a place in the queue. */
    volatile boolean queued;
    private final long made = now();
    private Bounds bounds;
    private final long patience;
    private final long longestPoll;
    private long poll;
    private long pause = FIRST_PAUSE;
    private long since = NEVER; // when the present run of failures began

    Tries(Bounds bounds, long patience, long poll) {
        this.bounds = bounds;
        this.patience = patience;
        this.poll = poll;
        this.longestPoll = poll;
    }

    Bounds bounds() {
        return bounds;
    }

    /** Called when the first try is sent: moves the deadline by the time that the call has waited for a connection, up to one timeout. */
    void begin(long timeout) {
        if (bounds.deadline < NEVER) bounds = new Bounds(bounds.waitUntil, bounds.limit, bounds.deadline + Math.min(timeout, now() - made));
    }

    Wait waiting() {
        return waiting(false);
    }

    /** While other calls wait for a connection ({@code crowded}), a poll is short, so that all get their turns. */
    Wait waiting(boolean crowded) {
        long left = Math.min(Math.max(0, bounds.waitUntil - now()), LONGEST_WAIT) / MILLISECOND * MILLISECOND;
        return new Wait(left, Math.min(left, crowded ? Math.min(poll, SHORT_POLL) : poll));
    }

    /** The limits of the next try. {@code timeout} is the longest that the client allows a try. {@code servers} have not been asked in this round: each gets its share of the time. */
    Limit limit(long timeout, int servers, long kept) {
        long failing = failing();
        long last = failing > 0 ? Math.max(patience - failing, SHORTEST_LAST) : NEVER;
        long share = (bounds.deadline - now()) / Math.max(servers, number == 0 ? 2 : 1); // there is time for another try
        long limit = Math.min(Math.min(timeout, bounds.limit), Math.min(share, last));
        // A short poll is soon over, unless it takes the time of other servers.
        boolean probed = kept > SHORT_POLL || (kept > 0 && limit + kept > share);
        return new Limit(limit, probed ? Math.min(limit, share / 2) : 0);
    }

    /** For how long the call has failed. */
    long failing() {
        return Math.max(0, now() - since);
    }

    /** Whether the call has to end, because after the pause it would have failed for too long. */
    boolean over(long pause) {
        if (failing() + pause > patience) return true;
        late = now() + pause >= bounds.deadline;
        return late;
    }

    /** Notes a try that failed. */
    void failed(UnavailableException error) {
        if (error.kind().isEmpty()) poll = Math.min(poll, SHORT_POLL);
        since = Math.min(since, now());
    }

    /** Notes a poll that ended without a grant, and returns the pause before the next one. */
    long held() {
        queued = true;
        since = NEVER;
        poll = Math.min(2 * poll, longestPoll);
        pause = FIRST_PAUSE;
        return pause;
    }

    /** The pause before the next try. A random factor spreads the callers that failed together, and the pause is at least the Retry-After of a 429. */
    long nextPause(UnavailableException error) {
        if (bounds.waitUntil > 0 && error.kind().isEmpty()) pause = Math.min(pause, MAX_POLL_PAUSE);
        long next = (long) (pause * (0.5 + ThreadLocalRandom.current().nextDouble()));
        pause = Math.min(2 * pause, MAX_PAUSE);
        return error.status() == 429 ? Math.max(next, Clock.nanos(error.retryAfter())) : next;
    }

    /** Notes a refusal, and says whether it means that an earlier try has done what was asked. */
    boolean done(Call call, FencelockException error) {
        if (error.status() >= 500) ambiguous = true;
        if (!ambiguous) return false;
        if (call.method().equals("DELETE") && call.path().startsWith("/leases/")) return error.status() == 404 && !error.kind().isEmpty();
        if (call.breaks() == 0) return false;
        return error instanceof OtherLeaseException other ? other.token() > call.breaks() : error.kind().equals("lock-not-held");
    }
}
