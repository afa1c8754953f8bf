package io.github.fencelock;

import java.time.Duration;

/**
 * Another lease holds the resource, or the wait for it ended. Safe to repeat.
 *
 * @serial exclude
 */
public final class HeldException extends FencelockException {
    private final String holder;
    private final long token;
    private final Duration remaining;

    HeldException(String message, String holder, long token, Duration remaining) {
        super(message);
        this.holder = holder;
        this.token = token;
        this.remaining = remaining;
    }

    /** {@return the label of that lease; "" if it has none} */
    public String holder() {
        return holder;
    }

    /** {@return its fencing token; 0 if it is not known} */
    public long token() {
        return token;
    }

    /** {@return the time until that lease ends, unless it is extended; zero if it is not known} */
    public Duration remaining() {
        return remaining;
    }
}
