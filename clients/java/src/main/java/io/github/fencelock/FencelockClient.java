package io.github.fencelock;

import io.github.fencelock.Server.Answer;
import io.github.fencelock.Tries.Bounds;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;

/**
 * Talks to one lock service through any of its servers. One client serves all threads, virtual ones too; it has two
 * or three threads of its own, however many leases it keeps alive.
 *
 * <p>A thread that waits in one of these calls can be interrupted: the call ends with InterruptedException, and what
 * its request may have been granted is released in the background. Other failures are FencelockExceptions.
 */
public final class FencelockClient implements AutoCloseable {
    private final Calls calls;
    private final String holder;
    private final String[] urls;
    private final Set<Calls.Sending> waits = ConcurrentHashMap.newKeySet(); // acquires, which close ends
    private volatile boolean closing;

    /** A client with the default settings, of URLs with commas between them. */
    public static FencelockClient of(String servers) {
        return builder(servers).build();
    }

    /** Servers are URLs: several strings, or with commas between them. When one does not answer, the next is asked. */
    public static Builder builder(String... servers) {
        return new Builder(servers);
    }

    private FencelockClient(Builder settings) {
        holder = settings.holder;
        urls = settings.servers.stream().map(String::strip).toArray(String[]::new);
        calls = new Calls(settings);
    }

    /** Settings of a client. */
    public static final class Builder {
        final List<String> servers = new ArrayList<>();
        Supplier<String> bearer;
        String holder = "";
        SSLContext tls;
        Duration timeout = Duration.ofSeconds(5);
        Duration patience = Duration.ofSeconds(15);
        Duration poll = Duration.ofSeconds(45);
        Consumer<Retry> onRetry = retry -> {};

        private Builder(String... servers) {
            for (String each : servers) Collections.addAll(this.servers, each.split(","));
        }

        /** Supplies the caller's credential before each request. White space around it is dropped. */
        public Builder bearer(Supplier<String> bearer) {
            this.bearer = Objects.requireNonNull(bearer);
            return this;
        }

        /** A file with the caller's credential, which is read before each request. */
        public Builder bearerFile(Path file) {
            return bearer(() -> {
                try {
                    return Files.readString(file);
                } catch (IOException e) {
                    throw new UncheckedIOException(e);
                }
            });
        }

        /** A public label that leases show. */
        public Builder holder(String holder) {
            this.holder = Objects.requireNonNull(holder);
            return this;
        }

        /** Which authorities are trusted, and the certificate of a client that has one. */
        public Builder sslContext(SSLContext tls) {
            this.tls = Objects.requireNonNull(tls);
            return this;
        }

        /** The most that one try at one server takes, beyond what it waits in the queue; 5 s. A try ends earlier when its
         * answer is overdue by what answers have taken: the next server is asked then. */
        public Builder timeout(Duration timeout) {
            this.timeout = timeout;
            return this;
        }

        /** For how long a call is repeated that fails, from its first failure: that no server responds, or none has a quorum; 15 s.
         * Then it throws UnavailableException. Every server is asked at least once; a wait in the queue is no failure. An acquire with a
         * wait ends a second after it at most, and a lease that is kept alive is extended for as long as it lives. */
        public Builder patience(Duration patience) {
            this.patience = patience;
            return this;
        }

        /** How long one request waits in the queue at the longest; 45 s. A longer wait is several requests, which keep the
         * place. Whole seconds, less than the time limits of proxies: 60 in nginx and most load balancers of clouds, 50 in Debian's HAProxy, 15 in Envoy. */
        public Builder poll(Duration poll) {
            this.poll = poll;
            return this;
        }

        /** Called for every try that failed and is repeated, on a thread of the client: it must not block. */
        public Builder onRetry(Consumer<Retry> onRetry) {
            this.onRetry = Objects.requireNonNull(onRetry);
            return this;
        }

        public FencelockClient build() {
            boolean right = timeout.compareTo(Duration.ZERO) > 0 && !patience.isNegative() && poll.compareTo(Duration.ofSeconds(1)) >= 0;
            if (servers.isEmpty() || !right) {
                throw new IllegalArgumentException("a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least");
            }
            return new FencelockClient(this);
        }
    }

    // Work under a lease.

    /**
     * Waits for a lease, runs work under it, keeps it alive meanwhile, and releases it.
     *
     * <p>It nests: in work, a withLock of the same resources by the same thread and client joins the lease instead of waiting for
     * itself, and its options are ignored. What would wait for the thread itself (one of several resources, or another
     * client) throws RefusedException at once. Another thread does not join.
     *
     * <p>It returns what work does, and throws what work throws. It throws LeaseLostException if the lease was lost meanwhile; with
     * {@link LockOptions#interruptOnLoss} also in place of an InterruptedException that comes of it.
     */
    public <T, X extends Exception> T withLock(String resource, LockOptions options, Work<T, X> work) throws X, InterruptedException {
        return withLock(List.of(resource), options, work);
    }

    /** withLock of several resources: all or none. */
    public <T, X extends Exception> T withLock(List<String> resources, LockOptions options, Work<T, X> work) throws X, InterruptedException {
        return run(enter(resources, options), work);
    }

    private static <T, X extends Exception> T run(Session session, Work<T, X> work) throws X {
        T value;
        try {
            session.lease.check();
            value = work.run(session.lease);
        } catch (Throwable e) {
            Optional<LeaseLostException> loss = session.leave();
            boolean interrupted = e instanceof InterruptedException && session.interrupted();
            if (loss.isPresent() && (interrupted || (e instanceof LeaseLostException && !(e instanceof StaleTokenException)))) throw loss.get();
            throw e;
        }
        session.leave().ifPresent(loss -> {
            throw loss;
        });
        return value;
    }

    /** Joins this thread's session of the resources, or begins one. */
    Session enter(List<String> resources, LockOptions options) throws InterruptedException {
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

    private static boolean lostIn(Session session) {
        return session.lease.isLost() && !session.lease.wasReleased();
    }

    // Leases.

    /** Waits for a lease that is kept alive until it is released: for try-with-resources. Any thread may close it. */
    public Lease lock(String resource, LockOptions options) throws InterruptedException {
        return lock(List.of(resource), options);
    }

    /** A lease of several resources that is kept alive: all or none. */
    public Lease lock(List<String> resources, LockOptions options) throws InterruptedException {
        Lease lease = acquire(resources, options);
        lease.keepAlive(options.margin());
        if (closing) {
            lease.finish();
            throw new ClosedException();
        }
        return lease;
    }

    /** Takes a lease, as lock does, if that is possible at once, or within the wait of the options if they have one. */
    public Optional<Lease> tryLock(String resource, LockOptions options) throws InterruptedException {
        try {
            return Optional.of(lock(resource, options.trying()));
        } catch (HeldException e) {
            return Optional.empty();
        }
    }

    /** Takes a lease that is not kept alive: the caller extends and releases it. */
    public Lease acquire(String resource, LockOptions options) throws InterruptedException {
        return acquire(List.of(resource), options);
    }

    /** A lease of several resources that is not kept alive: all or none. */
    public Lease acquire(List<String> resources, LockOptions options) throws InterruptedException {
        if (resources.isEmpty()) throw new IllegalArgumentException("name a resource");
        resources.forEach(Requests::encoded);
        if (options.waits()) Session.refuseToWaitForOneself(this, resources, options.hasSlots());
        long waitUntil = options.waitUntil();
        while (true) {
            Lease lease = granted(resources, options, waitUntil);
            if (!lease.validity().isZero()) return lease;
            // This process was paused, or the answer was late: what is left of the wait is another's turn.
            if (Clock.now() >= waitUntil) {
                lease.releaseLater(); // the call is to end
                throw Errors.unavailable("acquire " + Errors.shown(lease.resource()), lease.resource(), "the lease expired before the response arrived; a longer ttl may help");
            }
            lease.finish();
        }
    }

    /** The java.util.concurrent.locks.Lock of a resource. */
    public LeaseLock asLock(String resource, LockOptions options) {
        return new LeaseLock(this, List.of(resource), options);
    }

    /** Looks up a live lease by its lease id, for a process that works under a lease which another one acquired. Throws LeaseLostException if it has ended. */
    public Lease lease(String id) throws InterruptedException {
        return new Lease(calls, calls.answer(Call.of("look up", "", "GET", "/leases/current", Map.of("Fencelock-Lease", id)), Bounds.NONE));
    }

    private Lease granted(List<String> resources, LockOptions options, long waitUntil) throws InterruptedException {
        Call call = Requests.acquisition(resources, options, holder);
        Tries tries = calls.tries(new Bounds(waitUntil, Clock.NEVER, Math.min(Clock.NEVER, waitUntil + Tries.GRACE)));
        calls.busy.begin(); // until it is clear what is to be given up
        Calls.Sending sending = calls.prepare(call, tries);
        waits.add(sending);
        try {
            if (closing) sending.fail(new ClosedException());
            return new Lease(calls, sending.answer());
        } catch (InterruptedException | ClosedException e) {
            if (tries.number > 0) abandon(call); // an answer may be on its way
            throw e;
        } catch (RuntimeException e) { // the bearer's supplier may throw any
            if (tries.ambiguous || (tries.queued && !(e instanceof HeldException))) abandon(call);
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

    // Looking, and breaking.

    /** Whether a resource is held, by which holder, for how much longer, and its queue. */
    public LockState inspect(String resource) throws InterruptedException {
        return LockState.of(calls.answer(Requests.ofResource("inspect", resource, "GET", "/locks/"), Bounds.NONE).body());
    }

    /**
     * Tells who holds a resource, as inspect does: now, and after each change; empty while it is unknown, because no
     * server answers or there is no quorum. It looks every so often, until seen returns false. Tokens never fall; a holder that
     * comes and goes between two looks is left out.
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

    /** The held resources that begin with a prefix, in no particular order. A lock that is taken or released meanwhile may be missed or come twice. */
    public List<LockState> list(String prefix) throws InterruptedException {
        return pages("list", "/locks?prefix=" + Requests.encoded(prefix), prefix, "locks", LockState::of);
    }

    /** Ends the lease of a resource that has the fencing token, which inspect shows, and never a later one. That is for
     * administrators; the holder learns it from its next request. Throws RefusedException of the kind "lock-not-held" if the resource
     * is free, and OtherLeaseException if another lease holds it. */
    public void breakLock(String resource, long token) throws InterruptedException {
        calls.answer(Requests.breaking(resource, Map.of("resource", resource, "fencing_token", token)).breaking(token), Bounds.NONE);
    }

    /** Ends whatever lease holds a resource. After UnavailableException the lease may have ended, and another breakAny may end the next one: inspect first. */
    public void breakAny(String resource) throws InterruptedException {
        calls.answer(Requests.breaking(resource, Map.of("resource", resource, "any", true)).sentOnce(), Bounds.NONE);
    }

    // Guarded records.

    /** Reads a record without a claim; empty if it was neither written nor claimed yet. */
    public Optional<GuardedRecord> read(String resource) throws InterruptedException {
        try {
            return Optional.of(GuardedRecord.of(calls.answer(Requests.ofResource("read", resource, "GET", "/guarded/"), Bounds.NONE).body()));
        } catch (RefusedException e) {
            if (e.kind().equals("record-not-found")) return Optional.empty();
            throw e;
        }
    }

    /** Claims the record of the lease's resource and reads it: what it returns cannot be overwritten by an earlier holder. Throws StaleTokenException if another lease has been used since. */
    public GuardedRecord claim(Lease lease) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("claim", lease, "POST"), Bounds.NONE).body());
    }

    /** Writes the record of the lease's resource under its token: a JSON value of Map, List, String, Number and Boolean. Throws StaleTokenException if another lease has been used since; nothing is written then. */
    public GuardedRecord write(Lease lease, Object value) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("write", lease, "PUT").with(value), Bounds.NONE).body());
    }

    /** Deletes the value of the record of the lease's resource; its mark and history stay. */
    public GuardedRecord delete(Lease lease) throws InterruptedException {
        return GuardedRecord.of(calls.answer(Requests.guarded("delete", lease, "DELETE"), Bounds.NONE).body());
    }

    /** The records whose resources begin with a prefix, in the order of their bytes and without their values. */
    public List<GuardedRecord> records(String prefix) throws InterruptedException {
        return pages("records", "/guarded?prefix=" + Requests.encoded(prefix), prefix, "records", GuardedRecord::of);
    }

    /** The newest hundred writes and claims of a record, refused ones too, the newest first. */
    public List<GuardedRecord.Attempt> history(String resource) throws InterruptedException {
        return pages("history", "/history?resource=" + Requests.encoded(resource), resource, "attempts", GuardedRecord.Attempt::of);
    }

    private <T> List<T> pages(String operation, String path, String resource, String member, Function<Map<String, Object>, T> of) throws InterruptedException {
        List<T> all = new ArrayList<>();
        String cursor = "";
        do {
            String more = cursor.isEmpty() ? "" : "&cursor=" + Requests.encoded(cursor);
            Answer page = calls.answer(Call.of(operation, resource, "GET", path + "&limit=1000" + more, Map.of()), Bounds.NONE);
            Json.objects(page.body(), member).forEach(each -> all.add(of.apply(each)));
            cursor = Json.text(page.body(), "next_cursor");
        } while (!cursor.isEmpty());
        return all;
    }

    // The end.

    boolean sharesServers(FencelockClient other) {
        return !Collections.disjoint(List.of(urls), List.of(other.urls));
    }

    Busy busy() {
        return calls.busy;
    }

    /**
     * Ends a client: waits for a lease throw ClosedException, leases that are kept alive are lost. It waits a second at most for
     * work to notice that and release them, and for what requests that were given up may have been granted; TTLs end the
     * rest. Every later call throws ClosedException.
     */
    @Override
    public void close() {
        closing = true;
        for (Calls.Sending each : waits) each.fail(new ClosedException());
        for (Lease each : calls.kept) each.lose("its client was closed");
        try {
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
