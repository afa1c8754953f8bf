package io.github.fencelock;

import java.time.Duration;

/**
 * For as long as the client's patience, no server responded, or none had a quorum, or this caller was over a limit. Safe to repeat, except after
 * {@link FencelockClient#breakAny}, which may have taken effect.
 *
 * @serial exclude
 */
public final class UnavailableException extends FencelockException {
    private final Duration retryAfter;

    UnavailableException(String message, Duration retryAfter) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /** {@return how long the service asks its clients to wait before the next request (Retry-After); zero if it did not say} */
    public Duration retryAfter() {
        return retryAfter;
    }
}
