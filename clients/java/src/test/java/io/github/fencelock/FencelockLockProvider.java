package io.github.fencelock;

import java.time.Duration;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;

/**
 * A LockProvider of ShedLock over fencelock, to copy.
 *
 * <p>The lease is kept alive by a short TTL, so that a node that dies frees the task within that, and not within
 * lockAtMostFor; this process ends it at lockAtMostFor. The service keeps lockAtLeastFor, also when the node dies; the one of an
 * extension is kept by this process. In the task {@link #current} has the token.
 */
public final class FencelockLockProvider implements LockProvider {
    private static final Duration TTL = Duration.ofSeconds(30);
    private static final Duration SHORTEST_TTL = Duration.ofSeconds(2); // a busy machine has to extend it in time
    private static final Duration PATIENCE = Duration.ofSeconds(15); // a task that is due during a restart of the service still runs

    private static final ThreadLocal<Task> CURRENT = new ThreadLocal<>();

    private final FencelockClient client;

    public FencelockLockProvider(FencelockClient client) {
        this.client = client;
    }

    /** The lease of the task that this thread runs. */
    public static Optional<Lease> current() {
        return Optional.ofNullable(CURRENT.get()).filter(task -> !task.unlocked).map(task -> task.lease);
    }

    @Override
    public Optional<SimpleLock> lock(LockConfiguration configuration) {
        Duration atMost = configuration.getLockAtMostFor();
        try {
            Optional<Lease> lease = client.tryLock("shedlock/" + configuration.getName(), options(atMost, configuration.getLockAtLeastFor()));
            return lease.map(granted -> {
                Task task = new Task(granted);
                CURRENT.set(task);
                return new Held(task, atMost, Duration.ZERO); // the service keeps lockAtLeastFor
            });
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    /** The minimum hold is at most the TTL. */
    private static LockOptions options(Duration atMost, Duration atLeast) {
        Duration ttl = longer(SHORTEST_TTL, TTL.compareTo(atMost) < 0 ? TTL : atMost);
        return LockOptions.defaults().ttl(longer(ttl, atLeast)).minHold(atLeast).patience(PATIENCE);
    }

    private static Duration longer(Duration a, Duration b) {
        return a.compareTo(b) < 0 ? b : a;
    }

    private static void after(Duration pause, Runnable task) {
        CompletableFuture.delayedExecutor(pause.toNanos(), TimeUnit.NANOSECONDS).execute(task);
    }

    /** What a lock, and the locks that extend it, have in common. */
    private static final class Task {
        private final Lease lease;
        private volatile boolean unlocked;

        Task(Lease lease) {
            this.lease = lease;
        }

        /** Asks the service; if no server responds, the lease is held for as long as it is valid. */
        boolean isHeld() {
            try {
                lease.extend();
            } catch (LeaseLostException e) {
                return false;
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } catch (UnavailableException e) {
                // It is kept alive.
            }
            return !lease.isLost();
        }

        /** A lease that has ended before is ended without a word, as in ShedLock. */
        void end() {
            try {
                lease.close();
            } catch (LeaseLostException e) {
                // It is free.
            }
        }
    }

    /** Any thread may unlock or extend it, once. */
    private static final class Held implements SimpleLock {
        private final Task task;
        private final long begun = System.nanoTime();
        private final Duration atMost;
        private final Duration atLeast;
        private boolean used; // unlocked or extended

        Held(Task task, Duration atMost, Duration atLeast) {
            this.task = task;
            this.atMost = atMost;
            this.atLeast = atLeast;
            after(atMost, this::expire);
        }

        private Duration age() {
            return Duration.ofNanos(System.nanoTime() - begun);
        }

        private synchronized void expire() {
            if (!used) task.end();
        }

        private void use() {
            if (used) throw new IllegalStateException("the lock has been unlocked or extended before");
            used = true;
        }

        @Override
        public synchronized void unlock() {
            use();
            task.unlocked = true;
            if (CURRENT.get() == task) CURRENT.remove();
            Duration left = atLeast.minus(age());
            if (left.isNegative() || left.isZero()) task.end();
            else after(left, task::end);
        }

        @Override
        public synchronized Optional<SimpleLock> extend(Duration lockAtMostFor, Duration lockAtLeastFor) {
            use();
            if (age().compareTo(atMost) >= 0) task.end();
            return task.isHeld() ? Optional.of(new Held(task, lockAtMostFor, lockAtLeastFor)) : Optional.empty();
        }
    }
}
