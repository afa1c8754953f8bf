package io.github.fencelock;

import java.time.Duration;

/** The monotonic clock. Times are nanoseconds since it was first read, so that sums do not overflow. */
final class Clock {
    static final long MILLISECOND = 1_000_000;
    static final long SECOND = 1000 * MILLISECOND;
    /** Later than any time. */
    static final long NEVER = Long.MAX_VALUE / 4;

    private static final long START = System.nanoTime();

    private Clock() {}

    static long now() {
        return System.nanoTime() - START;
    }

    /** A time as System.nanoTime() gives it. */
    static long nanoTime(long at) {
        return START + at;
    }

    /** How long ago {@code at} was. */
    static Duration since(long at) {
        return Duration.ofNanos(now() - at);
    }

    /** A duration in nanoseconds, NEVER at most. */
    static long nanos(Duration duration) {
        return duration.compareTo(Duration.ofNanos(NEVER)) >= 0 ? NEVER : duration.toNanos();
    }

    /** The time that is so many nanoseconds from now, NEVER at most. */
    static long in(long nanos) {
        return Math.min(NEVER, now() + nanos);
    }
}
