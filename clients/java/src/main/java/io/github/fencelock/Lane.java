package io.github.fencelock;

import java.util.ArrayDeque;
import java.util.Queue;
import java.util.concurrent.Executor;

/** Lets a number of requests to a server through at once; the others queue, first come, first served. */
final class Lane {
    private final Executor pool;
    private final Queue<Runnable> queue = new ArrayDeque<>();
    private int free;

    Lane(int size, Executor pool) {
        this.free = size;
        this.pool = pool;
    }

    /** Runs a task when it has a turn, which {@link #give} ends: at once by this thread, or later by one of the pool. */
    void take(Runnable task) {
        synchronized (this) {
            if (free == 0) {
                queue.add(task);
                return;
            }
            free--;
        }
        task.run();
    }

    /** Ends a turn: the next in the queue has it. */
    void give() {
        Runnable next;
        synchronized (this) {
            next = queue.poll();
            if (next == null) free++;
        }
        if (next != null) pool.execute(next);
    }

    /** Whether a request queues. */
    synchronized boolean isCrowded() {
        return !queue.isEmpty();
    }
}
