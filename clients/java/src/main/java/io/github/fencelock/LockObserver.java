package io.github.fencelock;

import java.time.Duration;

/**
 * Hears what a client does, for metrics and logs. A method that is not overridden does nothing.
 *
 * <p>They are called on the thread of the call, or on one of the client's, and by several threads at once: they must not block. What one of them
 * throws is logged (System.Logger, io.github.fencelock) and ends nothing.
 */
public interface LockObserver {
    /**
     * A call begins to acquire. {@link #granted} or {@link #failed} follows: what has neither yet is waiting.
     *
     * @param resource what is acquired; several have ", " between them
     */
    default void acquiring(String resource) {}

    /**
     * A call has got its lease. If that is kept alive, {@link #released} or {@link #lost} follows.
     *
     * @param lease the lease
     * @param waited from the begin of the call
     */
    default void granted(Lease lease, Duration waited) {}

    /**
     * A call ended without a lease.
     *
     * @param resource what was to be acquired
     * @param error what the call throws: HeldException, UnavailableException, InterruptedException, …
     * @param waited from the begin of the call
     */
    default void failed(String resource, Throwable error, Duration waited) {}

    /**
     * A lease was released by its holder, or is released in the background.
     *
     * @param lease the lease
     * @param held since the grant
     */
    default void released(Lease lease, Duration held) {}

    /**
     * A lease was lost, which its holder may learn later. A lease that is not kept alive may end without this.
     *
     * @param lease the lease
     * @param loss why
     * @param held since the grant
     */
    default void lost(Lease lease, LeaseLostException loss, Duration held) {}

    /**
     * A try has failed and is repeated, also of an extend.
     *
     * @param retry the failure
     */
    default void retried(Retry retry) {}
}
