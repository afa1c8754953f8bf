package net.javacrumbs.shedlock.core;

import java.util.Optional;

/** The shape of ShedLock's interface, whose jar Debian does not have. */
public interface LockProvider {
    Optional<SimpleLock> lock(LockConfiguration configuration);
}
