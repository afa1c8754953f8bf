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

    /** Runs a task when it has a turn: at once in this thread, or later in one of the pool. {@link #give} ends the turn. */
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

    /** Ends a turn, and gives it to the next in the queue. */
    void give() {
        Runnable next;
        synchronized (this) {
            next = queue.poll();
            if (next == null) free++;
        }
        if (next != null) pool.execute(next);
    }

    /** Whether a request waits for a turn. */
    synchronized boolean isCrowded() {
        return !queue.isEmpty();
    }
}
