package io.github.fencelock;

import io.github.fencelock.Tries.Bounds;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** Acquires leases, and gives up in the background what a call that failed may have been granted. */
final class Acquisitions {
    private final Calls calls;
    private final String holder;
    private final Set<Calls.Sending> waits = ConcurrentHashMap.newKeySet(); // which close ends
    private volatile boolean closed;

    Acquisitions(Calls calls, String holder) {
        this.calls = calls;
        this.holder = holder;
    }

    /** Ends all waits, also future ones. */
    void close() {
        closed = true;
        for (Calls.Sending each : waits) each.fail(new ClosedException());
    }

    boolean isClosed() {
        return closed;
    }

    /** A lease that is not kept alive. */
    Lease acquire(List<String> resources, LockOptions options) throws InterruptedException {
        String names = String.join(", ", resources);
        long begun = Clock.now();
        calls.observe(observer -> observer.acquiring(names));
        try {
            Lease lease = valid(resources, options);
            lease.observe(Clock.since(begun));
            return lease;
        } catch (InterruptedException | RuntimeException | Error e) {
            calls.observe(observer -> observer.failed(names, e, Clock.since(begun)));
            throw e;
        }
    }

    /** A lease that has not ended when its grant arrives. */
    private Lease valid(List<String> resources, LockOptions options) throws InterruptedException {
        long waitUntil = options.waitUntil();
        long deadline = options.deadline();
        while (true) {
            Lease lease = granted(resources, options, waitUntil, deadline);
            if (!lease.validity().isZero()) return lease;
            // This process was paused, or the answer was late: what is left of the wait is another's turn.
            if (Clock.now() >= waitUntil) {
                lease.releaseLater(); // the call is to end
                throw Errors.unavailable("acquire " + Errors.shown(lease.resource()), lease.resource(), "the lease expired before the response arrived; a longer ttl may help")
                        .timedOut(options.waits());
            }
            lease.finish();
        }
    }

    private Lease granted(List<String> resources, LockOptions options, long waitUntil, long deadline) throws InterruptedException {
        Call call = Requests.acquisition(resources, options, holder);
        Tries tries = calls.tries(new Bounds(waitUntil, Clock.NEVER, deadline), options.patience());
        calls.busy.begin(); // until it is clear what is to be given up
        Calls.Sending sending = calls.prepare(call, tries);
        waits.add(sending);
        try {
            if (closed) sending.fail(new ClosedException());
            return new Lease(calls, options.interruptible() ? sending.answer() : sending.answerUninterruptibly());
        } catch (InterruptedException | ClosedException e) {
            if (tries.number > 0) abandon(call); // an answer may be on its way
            throw e;
        } catch (RuntimeException e) { // the bearer's supplier may throw any
            if (tries.ambiguous || (tries.queued && !(e instanceof HeldException))) abandon(call);
            if (e instanceof FencelockException ended) ended.timedOut(options.waits() && (e instanceof HeldException || tries.late));
            throw e;
        } finally {
            waits.remove(sending);
            calls.busy.end();
        }
    }

    /** Ends all that a request that its caller gave up may have: its lease, and its place in the queue. If no server responds, the TTL does. */
    private void abandon(Call call) {
        calls.send(call.cancelled(), Bounds.until(Clock.in(Tries.ABANDON)));
    }
}
