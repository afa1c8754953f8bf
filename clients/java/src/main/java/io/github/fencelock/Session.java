package io.github.fencelock;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.TreeSet;

/** A lease that one thread took, and that what is nested in it shares. */
final class Session {
    private static final ThreadLocal<Deque<Session>> OF_THREAD = new ThreadLocal<>();

    final Lease lease;
    private final FencelockClient client;
    private final TreeSet<String> names;
    private final boolean slots;
    private final Interrupter interrupter;
    private int depth = 1;

    private Session(FencelockClient client, List<String> names, LockOptions options, Lease lease) {
        this.client = client;
        this.names = new TreeSet<>(names);
        this.slots = options.hasSlots();
        this.lease = lease;
        this.interrupter = options.interrupts() ? new Interrupter() : null;
        if (interrupter != null) lease.lost().thenAccept(loss -> interrupter.fire());
    }

    /** Begins a session of this thread. */
    static Session begin(FencelockClient client, List<String> names, LockOptions options, Lease lease) {
        Session session = new Session(client, names, options, lease);
        client.busy().begin();
        if (OF_THREAD.get() == null) OF_THREAD.set(new ArrayDeque<>());
        OF_THREAD.get().push(session);
        return session;
    }

    private static Deque<Session> ofThread() {
        Deque<Session> sessions = OF_THREAD.get();
        return sessions == null ? new ArrayDeque<>() : sessions;
    }

    static Optional<Session> current() {
        return Optional.ofNullable(ofThread().peek());
    }

    /** This thread's session of the same client and the same resources, or of a slot of the same resource. */
    static Optional<Session> of(FencelockClient client, List<String> names, boolean slots) {
        TreeSet<String> wanted = new TreeSet<>(names);
        return ofThread().stream().filter(s -> s.client == client && s.slots == slots && s.names.equals(wanted)).findFirst();
    }

    /** Throws if this thread holds one of the resources: it would wait for itself. */
    static void refuseToWaitForOneself(FencelockClient client, List<String> names, boolean slots) {
        for (Session session : ofThread()) {
            TreeSet<String> both = new TreeSet<>(names);
            both.retainAll(session.names);
            if (both.isEmpty() || session.slots != slots || session.lease.isLost() || !session.client.sharesServers(client)) continue;
            String what = String.join(", ", names);
            String message = "acquire " + Errors.shown(what) + ": it would wait for itself: this thread holds " + Errors.shown(String.join(", ", both))
                    + "; use that lease (Lease.current()), or name the same resources with the same client to join it";
            throw (RefusedException) new RefusedException(message).about(what);
        }
    }

    /** Joins it. */
    Session enter() {
        lease.check();
        depth++;
        return this;
    }

    /** How often it was entered and not left. */
    int depth() {
        return depth;
    }

    /** Leaves it, and releases the lease with the last. Returns the loss of the lease. */
    Optional<LeaseLostException> leave() {
        if (--depth > 0) return lease.loss();
        Deque<Session> sessions = ofThread();
        sessions.remove(this);
        if (sessions.isEmpty()) OF_THREAD.remove();
        if (interrupter != null) interrupter.end();
        try {
            return lease.finish();
        } finally {
            client.busy().end();
        }
    }

    /** Whether the session has interrupted its thread, since the lease was lost. */
    boolean interrupted() {
        return interrupter != null && interrupter.fired();
    }
}
