package io.github.fencelock;

import static io.github.fencelock.Clock.now;

import io.github.fencelock.Server.Answer;
import io.github.fencelock.Tries.Bounds;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;

/**
 * A lease as the process that holds it knows it. Its validity counts on the monotonic clock from when the request was sent, so the lease never ends in
 * the service before it ends here. The id and proofs are secrets, which no toString shows. Safe for use by several threads.
 */
public final class Lease implements AutoCloseable {
    /**
     * One resource of a lease.
     *
     * @param token the fencing token, the same for the whole life of the lease
     * @param proof the token's fencing_proof, a secret for guards that demand one; "" if the service makes none
     */
    public record Part(String resource, long token, String proof) {
        @Override
        public String toString() {
            return Errors.shown(resource) + " token " + token;
        }
    }

    private static final String RELEASED = "it was released";

    private final Calls calls;
    private final String id;
    private final List<Part> parts;
    private final String resource;
    private final int slot;
    private final long ttl;
    private final CompletableFuture<LeaseLostException> lost = new CompletableFuture<>();
    private volatile long until;
    private volatile long margin; // nanoseconds before until from which the lease counts as lost
    private volatile boolean capped; // it is near its maximum hold time: no extension makes it last longer
    private volatile String gone = ""; // why it has ended; "" while it has not
    private volatile boolean finished; // it has been released, or its release was tried
    private final AtomicBoolean observed = new AtomicBoolean(); // observers have been told of its grant, and not of its end
    private final long granted = now();

    // The keep-alive has at most one timer (next) or one request (extending) at a time.
    private boolean kept;
    private Future<?> next;
    private Calls.Sending extending;

    Lease(Calls calls, Answer granted) {
        this.calls = calls;
        Map<String, Object> body = granted.body();
        id = Json.text(body, "lease_id");
        ttl = Json.number(body, "ttl_ms") * Clock.MILLISECOND;
        List<Map<String, Object>> several = Json.objects(body, "resources");
        parts = (several.isEmpty() ? List.of(body) : several).stream()
                .map(part -> new Part(Json.text(part, "resource"), Json.number(part, "fencing_token"), Json.text(part, "fencing_proof"))).toList();
        resource = parts.stream().map(Part::resource).collect(Collectors.joining(", "));
        slot = (int) Json.number(body, "slot");
        renew(granted);
    }

    /** {@return the lease of the innermost {@code withLock} around the caller, in this thread} */
    public static Optional<Lease> current() {
        return Session.current().map(session -> session.lease);
    }

    /** {@return the resource: with slots the name of the slot; for several resources, their names with ", " between them} */
    public String resource() {
        return resource;
    }

    /** {@return the number of the slot, from 1, if the lease was acquired with slots; else 0} */
    public int slot() {
        return slot;
    }

    /** {@return the time to live, which every extension restarts} */
    public Duration ttl() {
        return Duration.ofNanos(ttl);
    }

    /** {@return the fencing token: pass it to storage that refuses smaller ones} A lease of several resources has one for each: see {@link #parts}. */
    public long token() {
        return only().token();
    }

    /** {@return the fencing_proof of the token, a secret; "" if the service makes none} */
    public String proof() {
        return only().proof();
    }

    /** {@return each resource with its token and proof, in the order of their names} */
    public List<Part> parts() {
        return parts;
    }

    /** {@return the lease id, the capability of the lease} It is a secret. */
    public String id() {
        return id;
    }

    /** {@return for how long the lease is sure to hold; zero when it may have ended} */
    public Duration validity() {
        return gone.isEmpty() ? Duration.ofNanos(Math.max(0, until - now())) : Duration.ZERO;
    }

    /** {@return when validity ends, as a time of System.nanoTime()} From then on another lease may hold the resource. */
    public long untilNanoTime() {
        return Clock.nanoTime(until);
    }

    /** {@return whether the lease has ended, or ends within its margin} It reads the clock, so a process that was paused knows at once. */
    public boolean isLost() {
        return !whyLost().isEmpty();
    }

    /** Throws LeaseLostException if the lease is lost. Call it in loops, and before anything that no guard can refuse. */
    public void check() {
        loss().ifPresent(loss -> {
            throw loss;
        });
    }

    /** Why the lease is lost; empty while it is not. */
    Optional<LeaseLostException> loss() {
        String why = whyLost();
        return why.isEmpty() ? Optional.empty() : Optional.of(Errors.lost(resource, why));
    }

    /**
     * {@return a stage that completes when a lease that is kept alive is lost, and never completes if it is released before} Functions that depend on the
     * stage run on a thread of the client, so they must not block.
     */
    public CompletionStage<LeaseLostException> lost() {
        return lost.minimalCompletionStage();
    }

    /**
     * Restarts the lease's TTL. Throws LeaseLostException, which is final, or UnavailableException: then the lease keeps its earlier validity, and the
     * call may be repeated.
     *
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void extend() throws InterruptedException {
        renew(calls.answer(extension(), Bounds.NONE));
    }

    /**
     * Releases the lease. Throws LeaseLostException if the lease had ended before, and UnavailableException if the lease may not have been released:
     * repeat the call, or let the TTL end the lease.
     *
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void release() throws InterruptedException {
        stopKeeping();
        try {
            calls.answer(releasing(), Bounds.NONE);
            gone = RELEASED;
            ended(Optional.empty());
        } catch (LeaseLostException e) {
            ended(Optional.of(e));
            throw e;
        }
    }

    /**
     * Releases the lease. It waits for the release for at most a second, or until the thread is interrupted. After that the release continues in the
     * background; if no server responds, the TTL ends the lease. Throws LeaseLostException if the lease was lost before.
     */
    @Override
    public void close() {
        finish().ifPresent(loss -> {
            throw loss;
        });
    }

    /** Whether the lease was released before it was lost. */
    boolean wasReleased() {
        return gone.equals(RELEASED);
    }

    /** Releases the lease after its work, as close does. Returns the loss if the lease was lost before. */
    Optional<LeaseLostException> finish() {
        return finish(Tries.GRACE);
    }

    /** The same, but waits for the release for at most so many nanoseconds. */
    Optional<LeaseLostException> finish(long within) {
        if (wasReleased()) return Optional.empty();
        if (finished) return loss();
        stopKeeping();
        finished = true;
        String why = whyLost();
        try {
            calls.answer(releasing(), Bounds.until(Clock.in(within)));
        } catch (InterruptedException e) {
            releaseLater();
            Thread.currentThread().interrupt();
        } catch (LeaseLostException e) {
            if (why.isEmpty()) why = "it had ended when it was released";
        } catch (ClosedException | DeniedException | RefusedException e) {
            // No later try can release the lease: its TTL ends it.
        } catch (RuntimeException | Error e) { // whatever the bearer's supplier throws, too
            releaseLater();
        }
        gone = why.isEmpty() ? RELEASED : why;
        Optional<LeaseLostException> loss = why.isEmpty() ? Optional.empty() : Optional.of(Errors.lost(resource, why));
        ended(loss);
        return loss;
    }

    /** Tells the observers of the grant. From then on they are told of the end, once. */
    void observe(Duration waited) {
        observed.set(true);
        calls.observe(observer -> observer.granted(this, waited));
    }

    private void ended(Optional<LeaseLostException> loss) {
        if (!observed.getAndSet(false)) return;
        Duration held = Clock.since(granted);
        calls.observe(observer -> loss.ifPresentOrElse(why -> observer.lost(this, why, held), () -> observer.released(this, held)));
    }

    /** Releases the lease in the background if its holder has not released it. */
    void releaseIfLeft() {
        if (finished || wasReleased()) return;
        finished = true;
        releaseLater();
    }

    /** Releases the lease in the background. If no server answers, its TTL ends it. */
    void releaseLater() {
        calls.send(releasing(), Bounds.until(Clock.in(Tries.ABANDON)));
    }

    /** For logs: the tokens, and neither the id nor a proof. */
    @Override
    public String toString() {
        String state = wasReleased() ? "released" : isLost() ? "lost" : "valid for " + validity().toMillis() + " ms";
        return "Lease of " + parts.stream().map(Part::toString).collect(Collectors.joining(", ")) + ", " + state;
    }

    private Part only() {
        if (parts.size() != 1) throw new IllegalStateException("a lease of several resources has a token for each: see parts()");
        return parts.get(0);
    }

    /** Notes the validity that an answer gives, counted from when its request was sent. */
    private void renew(Answer answer) {
        Map<String, Object> body = answer.body();
        until = answer.sent() + (Json.number(body, "waited_ms") + Json.number(body, "validity_ms")) * Clock.MILLISECOND;
        capped = body.get("max_hold_remaining_ms") instanceof Number cap && cap.longValue() * Clock.MILLISECOND <= ttl;
    }

    /** The nanoseconds that the work may still take; 0 or less when it has to stop. */
    long left() {
        return until - margin - now();
    }

    private String whyLost() {
        String why = gone;
        if (!why.isEmpty()) return why;
        if (left() > 0) return "";
        return capped ? "it has reached its maximum hold time (maxHold, or the service's FENCELOCK_MAX_HOLD)" : "it was not extended in time";
    }

    /** The request of an extend. It names the TTL, because the service would otherwise use the TTL of the last extend, which another process may have sent. */
    private Call extension() {
        return current("extend", "POST", "/leases/current/extend").with(Map.of("ttl_ms", ttl / Clock.MILLISECOND));
    }

    private Call releasing() {
        return current("release", "DELETE", "/leases/current");
    }

    private Call current(String operation, String method, String path) {
        return Call.of(operation, resource, method, path, Map.of("Fencelock-Lease", id));
    }

    /** From now on extends the lease whenever a third of its TTL has passed, until it is released or lost. It is lost {@code before} its validity ends. */
    synchronized void keepAlive(Optional<Duration> before) {
        margin = Math.min(before.map(Clock::nanos).orElse(ttl / 10), ttl / 2);
        kept = true;
        calls.kept.add(this);
        rest(due());
    }

    /** The nanoseconds until a third of the TTL has passed since validity began. */
    private long due() {
        return Math.max(0, until - now() - ttl * 2 / 3);
    }

    private synchronized void rest(long due) {
        if (!kept) return;
        extending = null;
        next = calls.transport.after(Math.max(0, capped ? left() : Math.min(due, left())), this::keep);
    }

    private synchronized void keep() {
        if (!kept) return;
        long left = left();
        if (left <= 0 || !gone.isEmpty()) {
            lose(whyLost());
        } else if (capped) {
            rest(left);
        } else {
            // With this limit there is time to ask every server twice.
            extending = calls.send(extension(), new Bounds(0, left / (2L * calls.servers.size()), Clock.in(left)));
            extending.outcome.whenComplete(this::extended);
        }
    }

    private synchronized void extended(Answer answer, Throwable error) {
        if (!kept) return;
        if (error == null) {
            renew(answer);
            rest(due());
        } else if (error instanceof LeaseLostException loss && !loss.kind().equals("max-hold-reached")) {
            lose(loss.getMessage());
        } else {
            capped |= error instanceof LeaseLostException; // the lease ends when it would have ended before this extend
            rest(ttl / 20); // tries often, so that the lease outlives a short outage
        }
    }

    /** Ends the keep-alive, and notes and reports the loss. From now on another lease may hold the resource. */
    synchronized void lose(String why) {
        if (!kept) return;
        stopKeeping();
        gone = why;
        LeaseLostException loss = Errors.lost(resource, why);
        calls.transport.execute(() -> {
            ended(Optional.of(loss));
            lost.complete(loss);
        });
    }

    private synchronized void stopKeeping() {
        kept = false;
        calls.kept.remove(this);
        if (next != null) next.cancel(false);
        if (extending != null) extending.fail(new ClosedException());
    }
}
