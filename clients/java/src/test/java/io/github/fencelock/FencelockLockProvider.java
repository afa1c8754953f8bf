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
 * <p>The lease has a short TTL and is kept alive, so that a node that dies frees the task within the TTL, and not only after
 * lockAtMostFor. This process ends the lease at lockAtMostFor. The service enforces lockAtLeastFor, even if the node dies; this
 * process enforces that of an extension. Inside the task, {@link #current} has the lease with its token.
 */
public final class FencelockLockProvider implements LockProvider {
    private static final Duration TTL = Duration.ofSeconds(30);
    private static final Duration SHORTEST_TTL = Duration.ofSeconds(2); // with a shorter one a busy machine might not extend it in time
    private static final Duration PATIENCE = Duration.ofSeconds(15); // so that a task which is due during a restart of the service still runs

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
                return new Held(task, atMost, Duration.ZERO); // the service enforces lockAtLeastFor
            });
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return Optional.empty();
        }
    }

    /** The TTL is at least lockAtLeastFor, because the service allows no longer minimum hold. */
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

    /** The state that a lock shares with the locks that extend it. */
    private static final class Task {
        private final Lease lease;
        private volatile boolean unlocked;

        Task(Lease lease) {
            this.lease = lease;
        }

        /** Asks the service whether the lease is held. If no server responds, the lease counts as held for as long as it is valid. */
        boolean isHeld() {
            try {
                lease.extend();
            } catch (LeaseLostException e) {
                return false;
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            } catch (UnavailableException e) {
                // The keep-alive goes on trying.
            }
            return !lease.isLost();
        }

        /** Ends the lease. If it has ended before, that is no error, as in ShedLock. */
        void end() {
            try {
                lease.close();
            } catch (LeaseLostException e) {
                // The lease has ended already.
            }
        }
    }

    /** A lock that any thread may unlock or extend, once. */
    private static final class Held implements SimpleLock {
        private final Task task;
        private final long begun = System.nanoTime();
        private final Duration atMost;
        private final Duration atLeast;
        private boolean used; // it was unlocked or extended

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
