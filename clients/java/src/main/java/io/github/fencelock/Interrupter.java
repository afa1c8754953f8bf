package io.github.fencelock;

/**
 * Interrupts the thread that made it when a lease is lost, until that thread ends it; and keeps what it interrupts apart from an
 * interruption by somebody else, which must not get lost. A thread has one flag for both: one by somebody else counts as ours only
 * between the loss and the moment at which the thread notices it.
 */
final class Interrupter {
    private static final long LOOK_EVERY = Clock.MILLISECOND;

    private final Transport transport;
    private Thread thread = Thread.currentThread();
    private boolean fired;
    private boolean byOthers; // somebody else had interrupted it before us
    private boolean noticed; // it has taken our interruption: the next one is somebody else's

    Interrupter(Transport transport) {
        this.transport = transport;
    }

    synchronized void fire() {
        if (thread == null) return;
        byOthers = thread.isInterrupted();
        fired = true;
        thread.interrupt();
        look();
    }

    private synchronized void look() {
        if (thread == null) return;
        noticed = !thread.isInterrupted();
        if (!noticed) transport.after(LOOK_EVERY, this::look);
    }

    /** Takes an interruption back that the thread did not notice, unless it is somebody else's. The work may have ended with an InterruptedException. */
    synchronized void end(boolean thrown) {
        thread = null;
        if (!Thread.interrupted()) return;
        boolean ours = fired && !noticed && !thrown && !byOthers;
        if (!ours) Thread.currentThread().interrupt();
    }

    /** Whether an InterruptedException of the work comes of the loss. */
    synchronized boolean isCause() {
        return fired && !byOthers;
    }
}
