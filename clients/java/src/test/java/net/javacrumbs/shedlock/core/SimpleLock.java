package net.javacrumbs.shedlock.core;

import java.time.Duration;
import java.util.Optional;

/** The shape of ShedLock's interface, whose jar Debian does not have. */
public interface SimpleLock {
    void unlock();

    default Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
        throw new UnsupportedOperationException();
    }
}
