package io.github.fencelock;

import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.Lock;

/**
 * A resource as a java.util.concurrent.locks.Lock. It is reentrant, as a ReentrantLock is, and a thread that holds the resource by withLock may enter it,
 * too. It differs from the contract of Lock in these points:
 *
 * <ul>
 *   <li>The lock may be lost while a thread believes that it holds it: {@code lease().check()} and the guard show that, and unlock
 *       throws LeaseLostException then.
 *   <li>Every method except newCondition may throw a FencelockException, for example because no server responds.
 *   <li>There are no conditions.
 * </ul>
 */
public final class LeaseLock implements Lock {
    private final FencelockClient client;
    private final List<String> names;
    private final LockOptions options;

    /** The wait of the options is ignored: each method has its own. */
    LeaseLock(FencelockClient client, List<String> names, LockOptions options) {
        this.client = client;
        this.names = names;
        this.options = options;
    }

    /** {@return the lease that this thread holds} Throws IllegalMonitorStateException if it holds none. */
    public Lease lease() {
        return session().lease;
    }

    @Override
    public void lock() {
        uninterruptibly(options.waitingForever());
    }

    @Override
    public void lockInterruptibly() throws InterruptedException {
        client.enter(names, options.waitingForever());
    }

    @Override
    public boolean tryLock() {
        try {
            uninterruptibly(options.waitAtMost(Duration.ZERO));
            return true;
        } catch (HeldException e) {
            return false;
        }
    }

    /** Enters the lock. An interruption meanwhile has no effect, but the thread's flag is set afterwards, even if this throws. */
    private void uninterruptibly(LockOptions options) {
        try {
            client.enter(names, options.uninterruptible());
        } catch (InterruptedException e) {
            throw new IllegalStateException("what cannot be interrupted was", e);
        }
    }

    @Override
    public boolean tryLock(long time, TimeUnit unit) throws InterruptedException {
        try {
            client.enter(names, options.waitAtMost(Duration.ofNanos(Math.max(0, unit.toNanos(time)))));
            return true;
        } catch (HeldException e) {
            return false;
        }
    }

    /** Leaves the lock; the last unlock of a thread releases it. Throws LeaseLostException if the lease was lost meanwhile; the thread has left the lock then, too. */
    @Override
    public void unlock() {
        session().leave(false).ifPresent(loss -> {
            throw loss;
        });
    }

    /** Not supported. */
    @Override
    public Condition newCondition() {
        throw new UnsupportedOperationException("a lease has no conditions");
    }

    private Session session() {
        return Session.of(client, names, options.hasSlots()).orElseThrow(() -> new IllegalMonitorStateException("this thread does not hold the lock of " + String.join(", ", names)));
    }
}
