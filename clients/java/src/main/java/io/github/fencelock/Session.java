package io.github.fencelock;

import java.util.ArrayDeque;
import java.util.Collections;
import java.util.Deque;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

/** A lease that one thread took. Calls of the same thread that are nested in its work share it. */
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
        this.interrupter = options.interrupts() ? new Interrupter(client.transport()) : null;
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

    /** This thread's session that a call joins: of the same client and the same resources, or a slot of the same resource. A call may also name the slot as its resource. */
    static Optional<Session> of(FencelockClient client, List<String> names, boolean slots) {
        TreeSet<String> wanted = new TreeSet<>(names);
        return ofThread().stream().filter(s -> s.client == client && s.isOf(wanted, slots)).findFirst();
    }

    private boolean isOf(TreeSet<String> wanted, boolean wantedSlots) {
        if (slots == wantedSlots) return names.equals(wanted);
        return slots && wanted.equals(Set.of(lease.resource()));
    }

    /** Throws RefusedException if this thread holds one of the resources, or all slots of the resource: the call would wait for its own thread. */
    static void refuseToWaitForOneself(FencelockClient client, List<String> names, LockOptions options) {
        Set<String> mine = new TreeSet<>();
        for (Session session : ofThread()) {
            if (session.lease.isLost() || !session.client.sharesServers(client)) continue;
            for (Lease.Part part : session.lease.parts()) mine.add(part.resource());
        }
        boolean waits = options.hasSlots() ? mine.containsAll(options.slotsOf(names.get(0))) : !Collections.disjoint(mine, names);
        if (!waits) return;
        String what = String.join(", ", names);
        String message = "acquire " + Errors.shown(what) + ": it would wait for itself: this thread holds " + Errors.shown(String.join(", ", mine))
                + "; use that lease (Lease.current()), or name the same resources with the same client to join it";
        throw (RefusedException) new RefusedException(message).about(what);
    }

    /** Joins the session. */
    Session enter() {
        lease.check();
        depth++;
        return this;
    }

    /** How many calls have entered the session and not left it. */
    int depth() {
        return depth;
    }

    /**
     * Leaves the session; the last call that leaves releases the lease. Returns the loss if the lease was lost. {@code interrupted} says that the work
     * ended with an InterruptedException.
     */
    Optional<LeaseLostException> leave(boolean interrupted) {
        if (--depth > 0) return lease.loss();
        Deque<Session> sessions = ofThread();
        sessions.remove(this);
        if (sessions.isEmpty()) OF_THREAD.remove();
        if (interrupter != null) interrupter.end(interrupted);
        try {
            return lease.finish(interrupted ? Tries.HURRY : Tries.GRACE);
        } finally {
            client.busy().end();
        }
    }

    /** Whether the loss of the lease has caused an InterruptedException of the work. */
    boolean interruptedByLoss() {
        return interrupter != null && interrupter.isCause();
    }
}
