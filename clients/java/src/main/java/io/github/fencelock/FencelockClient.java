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
 * Talks to one lock service through any of its servers. One client serves all threads, including virtual ones. It has two
 * or three threads of its own, however many leases it keeps alive.
 *
 * <p>A thread that waits in one of these calls can be interrupted: the call throws InterruptedException, and the client releases in the
 * background what the service may have granted to the call. Other failures are FencelockExceptions.
 */
public final class FencelockClient implements AutoCloseable {
    private final Calls calls;
    private final Acquisitions acquisitions;
    private final String[] urls;

    /**
     * Makes a client with the default settings. When a server does not respond, the client asks the next.
     *
     * @param servers one URL, such as http://127.0.0.1:8080, or several with commas between them
     * @return the client
     */
    public static FencelockClient of(String servers) {
        return builder(servers).build();
    }

    /**
     * Begins the settings of a client. When a server does not respond, the client asks the next.
     *
     * @param servers URLs, such as http://127.0.0.1:8080: several strings, or several in one string with commas between them
     * @return the settings
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
     * <p>Calls nest. A withLock inside the work, of the same resources by the same thread and client, joins the lease instead of waiting for it; its
     * options are ignored. Inside the work of a slot, a withLock that names the slot as its resource ({@link Lease#resource}) joins, too. Any other call
     * that would wait for its own thread (for some of the resources, or through another client) throws RefusedException at once. Another thread does
     * not join.
     *
     * <p>It returns the result of work, and throws what work throws. It throws LeaseLostException if the lease was lost meanwhile and work
     * returned; with {@link LockOptions#interruptOnLoss} also instead of an InterruptedException that the loss has caused. If no lease was granted, it
     * throws HeldException, UnavailableException, DeniedException, RefusedException or ClosedException, and work is not called.
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
     * Takes part in the election of a leader among all processes that call it for the same resource: the process that holds the lease leads. It calls
     * lead, as withLock calls work, while this process leads. To resign, return from lead: elect then returns its result, or
     * throws its exception, and the next candidate leads at once.
     *
     * <p>When the lease is lost, lead must end: it calls {@link Lease#check} from time to time, or the options have interruptOnLoss. Then elect drops the
     * result or exception of lead, and this process becomes a candidate again. It stays a candidate through outages.
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
     * Waits for a lease, and keeps it alive until it is released: for try-with-resources. Any thread may close the lease. Throws HeldException,
     * UnavailableException, DeniedException, RefusedException or ClosedException if no lease was granted.
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
     * lock for several resources: all or none.
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
     * Takes a lease, as lock does, if the resource is free, or becomes free within the wait of the options if they have one.
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
     * Takes a lease that is not kept alive: the caller extends and releases it. Throws the exceptions of {@link #lock(String, LockOptions)}.
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
     * acquire for several resources: all or none.
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
     * Looks up a live lease by its lease id, for a process that works under a lease which another process acquired. Throws LeaseLostException if the
     * lease has ended.
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
     * Asks all servers at the same time, each once, whether they can grant locks: for the health check of an application. It takes at most the client's
     * timeout, and throws no FencelockException.
     *
     * @return the result for each server
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
     * Reports who holds a resource, as inspect does: now, and after each change. The state is empty while it is unknown, because no
     * server responds or there is no quorum. The watch inspects the resource again and again until seen returns false. Its tokens never fall. A holder
     * that comes and goes between two looks is left out.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @param every the time between two looks
     * @param seen gets each new state, and returns false to end the watch
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void watch(String resource, Duration every, Predicate<Optional<LockState>> seen) throws InterruptedException {
        long newest = 0;
        Object last = "";
        while (true) {
            Optional<LockState> lock = look(resource);
            long token = lock.flatMap(LockState::holder).map(LockState.Holder::token).orElse(0L);
            boolean released = token > 0 && token < newest; // while few nodes respond, an earlier lease may show that was released
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
     * Ends the lease of a resource whose fencing token is {@code token} (inspect shows it), never a later lease. It is for
     * administrators; the holder learns of it from its next request. Safe to repeat. Throws RefusedException of the kind "lock-not-held" if the resource
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
     * Ends whatever lease holds a resource. After UnavailableException the lease may have ended, and a second breakAny could end the next lease: inspect
     * the resource first.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public void breakAny(String resource) throws InterruptedException {
        calls.answer(Requests.breaking(resource, Map.of("resource", resource, "any", true)).sentOnce(), Bounds.NONE);
    }

    // Guarded records.

    /**
     * Reads a guarded record without a claim, so an earlier holder may still write it. To read before a write, use {@link #claim}.
     *
     * @param resource the name of the resource, 1 to 256 bytes
     * @return the record; empty if it was neither written nor claimed yet
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
     * Claims the record of the lease's resource, and reads it. From then on the record refuses smaller tokens. Throws StaleTokenException if the record
     * has seen a larger token.
     *
     * @param lease the lease
     * @return the record
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public GuardedRecord claim(Lease lease) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("claim", lease, "POST"), Bounds.NONE).body());
    }

    /**
     * Writes the record of the lease's resource under its token. Throws StaleTokenException if the record has seen a larger token; nothing is written
     * then. A write that may have taken effect is not sent again, because it could undo a later one: the call throws UnavailableException, and
     * {@link #read} shows whether the record has the value.
     *
     * @param lease the lease
     * @param value a JSON value of Map, List, String, Number and Boolean
     * @return the record after the write
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public GuardedRecord write(Lease lease, Object value) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("write", lease, "PUT").with(value).sentOnce(), Bounds.NONE).body());
    }

    /**
     * Deletes the value of the record of the lease's resource, with the exceptions of {@link #write}. The record's highest token and its history stay.
     *
     * @param lease the lease
     * @return the record after the deletion
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public GuardedRecord delete(Lease lease) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("delete", lease, "DELETE").sentOnce(), Bounds.NONE).body());
    }

    /**
     * The guarded records whose resources begin with a prefix, in byte order of their names, without their values.
     *
     * @param prefix what the names begin with; "" for all
     * @return the records
     * @throws InterruptedException if this thread is interrupted before the call has ended
     */
    public List<GuardedRecord> records(String prefix) throws InterruptedException {
        return calls.pages("records", "/guarded?prefix=" + Requests.encoded(prefix), prefix, "records", GuardedRecord::of);
    }

    /**
     * The newest hundred writes and claims of a record, including refused ones, the newest first.
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
     * Closes the client. Calls that wait for a lease throw ClosedException. Leases that are kept alive are lost. {@code close} waits at most a second
     * for their work to end. Then it waits at most another second until these leases are released, and those that calls were granted after
     * their callers had given up. TTLs end what is left, and the leases of {@code acquire}. Every later call throws ClosedException.
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
            Thread.currentThread().interrupt(); // an interrupted thread does not wait
        }
        calls.close();
    }

    @Override
    public String toString() {
        return "FencelockClient of " + String.join(", ", urls);
    }
}
