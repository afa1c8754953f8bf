package io.github.fencelock;

import java.time.Duration;

/**
 * Is told what a client does, for metrics and logs. A method that is not overridden does nothing.
 *
 * <p>The methods are called on the thread of the call, or on a thread of the client, and by several threads at once: they must not block. What a method
 * throws is logged (System.Logger, io.github.fencelock), and does not end the call.
 */
public interface LockObserver {
    /**
     * A call begins to acquire. {@link #granted} or {@link #failed} follows; until then the call is waiting.
     *
     * @param resource the resource; several have ", " between them
     */
    default void acquiring(String resource) {}

    /**
     * A call has got its lease. If the lease is kept alive, {@link #released} or {@link #lost} follows.
     *
     * @param lease the lease
     * @param waited the time since the call began
     */
    default void granted(Lease lease, Duration waited) {}

    /**
     * A call ended without a lease.
     *
     * @param resource the resource; several have ", " between them
     * @param error the exception that the call throws: HeldException, UnavailableException, InterruptedException, …
     * @param waited the time since the call began
     */
    default void failed(String resource, Throwable error, Duration waited) {}

    /**
     * A lease was released by its holder, or is released in the background.
     *
     * @param lease the lease
     * @param held the time since the grant
     */
    default void released(Lease lease, Duration held) {}

    /**
     * A lease was lost; its holder may learn of it later. This is not always called for a lease that is not kept alive.
     *
     * @param lease the lease
     * @param loss why the lease was lost
     * @param held the time since the grant
     */
    default void lost(Lease lease, LeaseLostException loss, Duration held) {}

    /**
     * A try of a call has failed and will be repeated. Extends are calls, too.
     *
     * @param retry the failure, and when the call is tried again
     */
    default void retried(Retry retry) {}
}
