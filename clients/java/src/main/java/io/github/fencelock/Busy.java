package io.github.fencelock;

import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;

/** Counts the calls and sessions of a client that are under way, so that its close can wait for them. */
final class Busy {
    private final ReentrantLock guard = new ReentrantLock();
    private final Condition idle = guard.newCondition();
    private int count;

    void begin() {
        add(1);
    }

    void end() {
        add(-1);
    }

    private void add(int n) {
        guard.lock();
        try {
            count += n;
            if (count == 0) idle.signalAll();
        } finally {
            guard.unlock();
        }
    }

    /** Waits until nothing is under way, or for so many nanoseconds. */
    void awaitIdle(long nanos) throws InterruptedException {
        guard.lockInterruptibly();
        try {
            for (long left = nanos; count > 0 && left > 0; ) left = idle.awaitNanos(left);
        } finally {
            guard.unlock();
        }
    }
}
