package io.github.fencelock;

import java.time.Duration;

/**
 * No server answered, or none had a quorum, or this caller is at a limit, for as long as the client is patient. Safe to repeat.
 *
 * @serial exclude
 */
public final class UnavailableException extends FencelockException {
    private final Duration retryAfter;

    UnavailableException(String message, Duration retryAfter) {
        super(message);
        this.retryAfter = retryAfter;
    }

    /** {@return for how long the service asks not to be asked again; zero if it did not say} */
    public Duration retryAfter() {
        return retryAfter;
    }
}
