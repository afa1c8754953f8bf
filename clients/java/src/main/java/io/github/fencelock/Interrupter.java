package io.github.fencelock;

/** Interrupts the thread that made it, until that ends it. */
final class Interrupter {
    private Thread thread = Thread.currentThread();
    private boolean fired;

    synchronized void fire() {
        if (thread == null) return;
        fired = true;
        thread.interrupt();
    }

    /** Takes an interruption back that the thread did not notice, and says whether there was one. */
    synchronized boolean end() {
        if (thread != null && fired) Thread.interrupted();
        thread = null;
        return fired;
    }

    synchronized boolean fired() {
        return fired;
    }
}
