package io.github.fencelock;

/**
 * Interrupts the thread that made it when a lease is lost, unless that thread has called {@link #end} before. It keeps its own interruption
 * apart from one by somebody else, which must not get lost. A thread has a single flag for both, so an interruption by somebody else is taken
 * for ours only if it comes between the loss and the moment at which the thread notices the loss.
 */
final class Interrupter {
    private static final long LOOK_EVERY = Clock.MILLISECOND;

    private final Transport transport;
    private Thread thread = Thread.currentThread();
    private boolean fired;
    private boolean byOthers; // somebody else had interrupted the thread before us
    private boolean noticed; // the thread has taken our interruption: the next one is somebody else's

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

    /** Clears our interruption if the thread has not noticed it, and leaves one by somebody else. {@code thrown} says that the work ended with an InterruptedException. */
    synchronized void end(boolean thrown) {
        thread = null;
        if (!Thread.interrupted()) return;
        boolean ours = fired && !noticed && !thrown && !byOthers;
        if (!ours) Thread.currentThread().interrupt();
    }

    /** Whether the loss has caused an InterruptedException of the work. */
    synchronized boolean isCause() {
        return fired && !byOthers;
    }
}
