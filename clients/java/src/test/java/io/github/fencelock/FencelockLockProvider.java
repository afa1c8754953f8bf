package io.github.fencelock;

import java.time.Duration;
import java.util.Optional;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A LockProvider of ShedLock over fencelock, to copy.
 *
 * <p>The lease is kept alive by a short TTL, so that a node that dies frees the task within that, and not within
 * lockAtMostFor; at lockAtMostFor it ends, as in ShedLock. In the task {@code Lease.current()} has the token.
 */
public final class FencelockLockProvider implements LockProvider {
    private static final Duration TTL = Duration.ofSeconds(30);

    private final FencelockClient client;

    public FencelockLockProvider(FencelockClient client) {
        this.client = client;
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        LeaseLock lock = client.asLock("shedlock/" + configuration.getName(), options(configuration.getLockAtMostFor(), configuration.getLockAtLeastFor()));
        return lock.tryLock() ? Optional.of(lock::unlock) : Optional.empty();
    }

    /** The minimum hold is at most the TTL, and the TTL at most the maximum hold. */
    private static LockOptions options(Duration atMost, Duration atLeast) {
        Duration ttl = TTL.compareTo(atMost) < 0 ? TTL : atMost;
        return LockOptions.defaults().ttl(ttl.compareTo(atLeast) < 0 ? atLeast : ttl).minHold(atLeast).maxHold(atMost);
    }
}
