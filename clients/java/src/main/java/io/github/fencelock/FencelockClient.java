package io.github.fencelock;

import io.github.fencelock.Tries.Bounds;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Predicate;

/**
 * Talks to one lock service through any of its servers. One client serves all threads, virtual ones too; it has two
 * or three threads of its own, however many leases it keeps alive.
 *
 * <p>A thread that waits in one of these calls can be interrupted: the call ends with InterruptedException, and what
 * its request may have been granted is released in the background. Other failures are FencelockExceptions.
 */
public final class FencelockClient implements AutoCloseable {
    private final Calls calls;
    private final Acquisitions acquisitions;
    private final String[] urls;

    /**
     * A client with the default settings, of URLs with commas between them.
     *
     * @param servers URLs, such as http://127.0.0.1:8080
     * @return the client
     */
    public static FencelockClient of(String servers) {
        return builder(servers).build();
    }

    /**
     * Servers are URLs: several strings, or with commas between them. When one does not answer, the next is asked.
     *
     * @param servers URLs, such as http://127.0.0.1:8080
     * @return its settings
     */
    public static ClientBuilder builder(String... servers) {
        return new ClientBuilder(servers);
    }

    FencelockClient(ClientBuilder settings) {
        urls = settings.servers.stream().map(String::strip).toArray(String[]::new);
        calls = new Calls(settings);
        acquisitions = new Acquisitions(calls, settings.holder);
    }

    // Work under a lease.

    /**
     * Waits for a lease, runs work under it, keeps it alive meanwhile, and releases it.
     *
     * <p>It nests: in work, a withLock of the same resources by the same thread and client joins the lease instead of waiting for
     * itself, and its options are ignored; within a slot, also one of the slot by its name ({@link Lease#resource}). What would wait for the thread itself (one of several resources, or another
     * client) throws RefusedException at once. Another thread does not join.
     *
     * <p>It returns what work does, and throws what work throws. It throws LeaseLostException if the lease was lost meanwhile; with
     * {@link LockOptions#interruptOnLoss} also in place of an InterruptedException that comes of it.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @param work what is done under the lease
     * @return what work returned
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <T, X extends Exception> T withLock(String resource, LockOptions options, Work<T, X> work) throws X, InterruptedException {
        return withLock(List.of(resource), options, work);
    }

    /**
     * withLock with the default options.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param resource the name of the resource, 1 to 256 bytes
     * @param work what is done under the lease
     * @return what work returned
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <T, X extends Exception> T withLock(String resource, Work<T, X> work) throws X, InterruptedException {
        return withLock(resource, LockOptions.defaults(), work);
    }

    /**
     * withLock of work that returns nothing.
     *
     * @param <X> what the work throws
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @param work what is done under the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <X extends Exception> void withLock(String resource, LockOptions options, Task<X> work) throws X, InterruptedException {
        this.<Void, X>withLock(resource, options, lease -> {
            work.run();
            return null;
        });
    }

    /**
     * withLock of work that returns nothing, with the default options.
     *
     * @param <X> what the work throws
     * @param resource the name of the resource, 1 to 256 bytes
     * @param work what is done under the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <X extends Exception> void withLock(String resource, Task<X> work) throws X, InterruptedException {
        withLock(resource, LockOptions.defaults(), work);
    }

    /**
     * withLock of several resources: all or none.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param resources the names of the resources, 1 to 16
     * @param options the TTL, the wait and the rest
     * @param work what is done under the lease
     * @return what work returned
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <T, X extends Exception> T withLock(List<String> resources, LockOptions options, Work<T, X> work) throws X, InterruptedException {
        return run(enter(resources, options), work);
    }

    /**
     * withLock of several resources, with the default options.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param resources the names of the resources, 1 to 16
     * @param work what is done under the lease
     * @return what work returned
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <T, X extends Exception> T withLock(List<String> resources, Work<T, X> work) throws X, InterruptedException {
        return withLock(resources, LockOptions.defaults(), work);
    }

    private static <T, X extends Exception> T run(Session session, Work<T, X> work) throws X {
        T value;
        try {
            session.lease.check();
            value = work.run(session.lease);
        } catch (Throwable e) {
            boolean interrupted = e instanceof InterruptedException;
            Optional<LeaseLostException> loss = session.leave(interrupted);
            if (loss.isPresent() && ((interrupted && session.interruptedByLoss()) || (e instanceof LeaseLostException && !(e instanceof StaleTokenException)))) throw loss.get();
            throw e;
        }
        session.leave(false).ifPresent(loss -> {
            throw loss;
        });
        return value;
    }

    /** Joins this thread's session of the resources, or begins one. */
    Session enter(List<String> resources, LockOptions options) throws InterruptedException {
        if (options.interruptible() && Thread.interrupted()) throw new InterruptedException();
        Optional<Session> outer = Session.of(this, resources, options.hasSlots());
        return outer.isPresent() ? outer.get().enter() : Session.begin(this, resources, options, lock(resources, options));
    }

    /**
     * Stands for the leadership of all that call it for the same resource: who holds its lease leads. It calls lead, as
     * withLock calls work, while this process leads. To resign, return from lead: elect returns what it returned, or
     * throws what it threw, and the next candidate leads at once.
     *
     * <p>When the lease is lost, lead must end: it looks at {@link Lease#check}, or the options say interruptOnLoss. Then, and after an outage, elect
     * stands again, and drops what lead returned or threw.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @param lead what is done while this process leads
     * @return what lead returned
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if the work throws it
     */
    public <T, X extends Exception> T elect(String resource, LockOptions options, Work<T, X> lead) throws X, InterruptedException {
        while (true) {
            Session session = null;
            try {
                session = enter(List.of(resource), options);
                return run(session, lead);
            } catch (InterruptedException e) {
                throw e;
            } catch (Exception e) {
                boolean unled = session == null && (e instanceof UnavailableException || e instanceof LeaseLostException);
                if (!unled && (session == null || !lostIn(session))) throw e;
            }
            Thread.sleep(50 + ThreadLocalRandom.current().nextInt(50));
        }
    }

    /**
     * elect with the default options.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param resource the name of the resource, 1 to 256 bytes
     * @param lead what is done while this process leads
     * @return what lead returned
     * @throws InterruptedException if this thread is interrupted before the call has ended
     * @throws X if lead throws it
     */
    public <T, X extends Exception> T elect(String resource, Work<T, X> lead) throws X, InterruptedException {
        return elect(resource, LockOptions.defaults(), lead);
    }

    private static boolean lostIn(Session session) {
        return session.lease.isLost() && !session.lease.wasReleased();
    }

    // Leases.

    /**
     * Waits for a lease that is kept alive until it is released: for try-with-resources. Any thread may close it.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease lock(String resource, LockOptions options) throws InterruptedException {
        return lock(List.of(resource), options);
    }

    /**
     * lock with the default options.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease lock(String resource) throws InterruptedException {
        return lock(resource, LockOptions.defaults());
    }

    /**
     * A lease of several resources that is kept alive: all or none.
     *
     * @param resources the names of the resources, 1 to 16
     * @param options the TTL, the wait and the rest
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease lock(List<String> resources, LockOptions options) throws InterruptedException {
        Lease lease = acquire(resources, options);
        lease.keepAlive(options.margin());
        if (acquisitions.isClosed()) {
            lease.finish();
            throw new ClosedException();
        }
        return lease;
    }

    /**
     * Takes a lease, as lock does, if that is possible at once, or within the wait of the options if they have one.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @return the lease; empty if the resource is held
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Optional<Lease> tryLock(String resource, LockOptions options) throws InterruptedException {
        try {
            return Optional.of(lock(resource, options.trying()));
        } catch (HeldException e) {
            return Optional.empty();
        }
    }

    /**
     * tryLock with the default options: at once, or not at all.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the lease; empty if the resource is held
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Optional<Lease> tryLock(String resource) throws InterruptedException {
        return tryLock(resource, LockOptions.defaults());
    }

    /**
     * Takes a lease that is not kept alive: the caller extends and releases it.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease acquire(String resource, LockOptions options) throws InterruptedException {
        return acquire(List.of(resource), options);
    }

    /**
     * acquire with the default options.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease acquire(String resource) throws InterruptedException {
        return acquire(resource, LockOptions.defaults());
    }

    /**
     * A lease of several resources that is not kept alive: all or none.
     *
     * @param resources the names of the resources, 1 to 16
     * @param options the TTL, the wait and the rest
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease acquire(List<String> resources, LockOptions options) throws InterruptedException {
        options.check(resources);
        if (options.waits()) Session.refuseToWaitForOneself(this, resources, options);
        return acquisitions.acquire(resources, options);
    }

    /**
     * The java.util.concurrent.locks.Lock of a resource.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param options the TTL, the wait and the rest
     * @return the lock
     */
    public LeaseLock asLock(String resource, LockOptions options) {
        return new LeaseLock(this, List.of(resource), options);
    }

    /**
     * asLock with the default options.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the lock
     */
    public LeaseLock asLock(String resource) {
        return asLock(resource, LockOptions.defaults());
    }

    /**
     * Looks up a live lease by its lease id, for a process that works under a lease which another one acquired. Throws LeaseLostException if it has ended.
     *
     * @param id the lease id, a secret
     * @return the lease
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Lease lease(String id) throws InterruptedException {
        return new Lease(calls, calls.answer(Call.of("look up", "", "GET", "/leases/current", Map.of("Fencelock-Lease", id)), Bounds.NONE));
    }

    // Looking, and breaking.

    /**
     * Asks every server once, at the same time, whether it can grant locks: for a health check of an application. It takes as long as the client's timeout at most,
     * and throws no FencelockException.
     *
     * @return what the servers said
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Health health() throws InterruptedException {
        return calls.health();
    }

    /**
     * Whether a resource is held, by which holder, for how much longer, and its queue.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the state of the resource
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public LockState inspect(String resource) throws InterruptedException {
        return LockState.of(calls.answer(Requests.ofResource("inspect", resource, "GET", "/locks/"), Bounds.NONE).body());
    }

    /**
     * Tells who holds a resource, as inspect does: now, and after each change; empty while it is unknown, because no
     * server answers or there is no quorum. It looks every so often, until seen returns false. Tokens never fall; a holder that
     * comes and goes between two looks is left out.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param every the time between two looks
     * @param seen gets what is seen, and returns false to end
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void watch(String resource, Duration every, Predicate<Optional<LockState>> seen) throws InterruptedException {
        long newest = 0;
        Object last = "";
        while (true) {
            Optional<LockState> lock = look(resource);
            long token = lock.flatMap(LockState::holder).map(LockState.Holder::token).orElse(0L);
            boolean released = token > 0 && token < newest; // with few nodes that answer, one may show that was released
            newest = Math.max(newest, token);
            Object now = List.of(lock.isPresent(), token);
            if (!released && !now.equals(last)) {
                if (!seen.test(lock)) return;
                last = now;
            }
            TimeUnit.NANOSECONDS.sleep(Clock.nanos(every));
        }
    }

    private Optional<LockState> look(String resource) throws InterruptedException {
        try {
            return Optional.of(inspect(resource));
        } catch (UnavailableException e) {
            return Optional.empty();
        }
    }

    /**
     * The held resources that begin with a prefix, in no particular order. A lock that is taken or released meanwhile may be missed or come twice.
     *
     * @param prefix what the names begin with; "" for all
     * @return the held resources
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public List<LockState> list(String prefix) throws InterruptedException {
        return calls.pages("list", "/locks?prefix=" + Requests.encoded(prefix), prefix, "locks", LockState::of);
    }

    /**
     * Ends the lease of a resource that has the fencing token, which inspect shows, and never a later one. That is for
     * administrators; the holder learns it from its next request. Throws RefusedException of the kind "lock-not-held" if the resource
     * is free, and OtherLeaseException if another lease holds it.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param token the fencing token of the lease to break
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void breakLock(String resource, long token) throws InterruptedException {
        calls.answer(Requests.breaking(resource, Map.of("resource", resource, "fencing_token", token)).breaking(token), Bounds.NONE);
    }

    /**
     * Ends whatever lease holds a resource. After UnavailableException the lease may have ended, and another breakAny may end the next one: inspect first.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void breakAny(String resource) throws InterruptedException {
        calls.answer(Requests.breaking(resource, Map.of("resource", resource, "any", true)).sentOnce(), Bounds.NONE);
    }

    // Guarded records.

    /**
     * Reads a record without a claim; empty if it was neither written nor claimed yet.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the record
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public Optional<GuardedRecord> read(String resource) throws InterruptedException {
        try {
            return Optional.of(GuardedRecord.of(calls.answer(Requests.ofResource("read", resource, "GET", "/guarded/"), Bounds.NONE).body()));
        } catch (RefusedException e) {
            if (e.kind().equals("record-not-found")) return Optional.empty();
            throw e;
        }
    }

    /**
     * Claims the record of the lease's resource and reads it: what it returns cannot be overwritten by an earlier holder. Throws StaleTokenException if another lease has been used since.
     *
     * @param lease the lease
     * @return the record
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public GuardedRecord claim(Lease lease) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("claim", lease, "POST"), Bounds.NONE).body());
    }

    /**
     * Writes the record of the lease's resource under its token: a JSON value of Map, List, String, Number and Boolean. Throws StaleTokenException if another lease has been used since; nothing is written then.
     *
     * @param lease the lease
     * @param value a JSON value
     * @return the record after the write
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public GuardedRecord write(Lease lease, Object value) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("write", lease, "PUT").with(value), Bounds.NONE).body());
    }

    /**
     * Deletes the value of the record of the lease's resource; its mark and history stay.
     *
     * @param lease the lease
     * @return the record after the deletion
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public GuardedRecord delete(Lease lease) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("delete", lease, "DELETE"), Bounds.NONE).body());
    }

    /**
     * The records whose resources begin with a prefix, in the order of their bytes and without their values.
     *
     * @param prefix what the names begin with; "" for all
     * @return the records
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public List<GuardedRecord> records(String prefix) throws InterruptedException {
        return calls.pages("records", "/guarded?prefix=" + Requests.encoded(prefix), prefix, "records", GuardedRecord::of);
    }

    /**
     * The newest hundred writes and claims of a record, refused ones too, the newest first.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the writes and claims
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public List<GuardedRecord.Attempt> history(String resource) throws InterruptedException {
        return calls.pages("history", "/history?resource=" + Requests.encoded(resource), resource, "attempts", GuardedRecord.Attempt::of);
    }

    // The end.

    boolean sharesServers(FencelockClient other) {
        return !Collections.disjoint(List.of(urls), List.of(other.urls));
    }

    Transport transport() {
        return calls.transport;
    }

    Busy busy() {
        return calls.busy;
    }

    /**
     * Ends a client: waits for a lease throw ClosedException, and leases that are kept alive are lost, and released. It waits a second at most
     * for work to notice that and end, and another for the releases, and for what requests that were given up may have been
     * granted; TTLs end the rest. Leases of acquire are left to their callers' TTLs. Every later call throws ClosedException.
     */
    @Override
    public void close() {
        acquisitions.close();
        List<Lease> left = List.copyOf(calls.kept);
        for (Lease each : left) each.lose("its client was closed");
        try {
            calls.busy.awaitIdle(Tries.GRACE);
            for (Lease each : left) each.releaseIfLeft();
            calls.busy.awaitIdle(Tries.GRACE);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt(); // whoever is in a hurry waits for nothing
        }
        calls.close();
    }

    @Override
    public String toString() {
        return "FencelockClient of " + String.join(", ", urls);
    }
}
