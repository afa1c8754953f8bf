package io.github.fencelock;

import io.github.fencelock.Tries.Bounds;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** Acquires leases. If a call fails, it releases in the background what the service may have granted to the call. */
final class Acquisitions {
    private final Calls calls;
    private final String holder;
    private final Set<Calls.Sending> waits = ConcurrentHashMap.newKeySet(); // acquires under way, which close ends
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

    /** Acquires a lease that is not kept alive, and tells the observers. */
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

    /** Acquires a lease that has not expired when its grant arrives. */
    private Lease valid(List<String> resources, LockOptions options) throws InterruptedException {
        long waitUntil = options.waitUntil();
        long deadline = options.deadline();
        while (true) {
            Lease lease = granted(resources, options, waitUntil, deadline);
            if (!lease.validity().isZero()) return lease;
            // The lease expired on its way: this process was paused, or the response was late. Use what is left of the wait to try again.
            if (Clock.now() >= waitUntil) {
                lease.releaseLater(); // the call has to end now
                throw Errors.unavailable("acquire " + Errors.shown(lease.resource()), lease.resource(), "the lease expired before the response arrived; a longer ttl may help")
                        .timedOut(options.waits());
            }
            lease.finish();
        }
    }

    private Lease granted(List<String> resources, LockOptions options, long waitUntil, long deadline) throws InterruptedException {
        Call call = Requests.acquisition(resources, options, holder);
        Tries tries = calls.tries(new Bounds(waitUntil, Clock.NEVER, deadline), options.patience());
        calls.busy.begin(); // close waits until this call has given up what it may have been granted
        Calls.Sending sending = calls.prepare(call, tries);
        waits.add(sending);
        try {
            if (closed) sending.fail(new ClosedException());
            return new Lease(calls, options.interruptible() ? sending.answer() : sending.answerUninterruptibly());
        } catch (InterruptedException | ClosedException e) {
            if (tries.number > 0) abandon(call); // a grant may be on its way
            throw e;
        } catch (RuntimeException e) { // any kind, because the bearer's supplier may throw it
            if (tries.ambiguous || (tries.queued && !(e instanceof HeldException))) abandon(call);
            if (e instanceof FencelockException ended) ended.timedOut(options.waits() && (e instanceof HeldException || tries.late));
            throw e;
        } finally {
            waits.remove(sending);
            calls.busy.end();
        }
    }

    /** Ends what a call may have got that its caller has given up: a lease, or a place in the queue. If no server responds, the TTL ends the lease. */
    private void abandon(Call call) {
        calls.send(call.cancelled(), Bounds.until(Clock.in(Tries.ABANDON)));
    }
}
