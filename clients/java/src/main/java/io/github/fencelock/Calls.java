package io.github.fencelock;

import io.github.fencelock.Server.Answer;
import io.github.fencelock.Server.NoAnswer;
import io.github.fencelock.Tries.Bounds;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.function.Supplier;

/** Sends calls, and decides to which server and how often. docs/how-to/write-a-client.md has the rules. Only the caller's thread waits for a call. */
final class Calls {
    private static final System.Logger LOG = System.getLogger("io.github.fencelock");

    final List<Server> servers = new ArrayList<>();
    final Transport transport;
    private final Supplier<String> bearer; // null for none
    private final long timeout;
    private final long patience;
    private final long poll;
    private final List<LockObserver> observers;
    private final Set<Sending> sending = ConcurrentHashMap.newKeySet();
    /** Leases that are kept alive. */
    final Set<Lease> kept = ConcurrentHashMap.newKeySet();
    /** What close waits for: calls under way, and sessions. */
    final Busy busy = new Busy();
    private volatile int first; // the index of the server that responded last
    private volatile long slowest = Tries.SHORTEST_TRY; // nanoseconds of the slowest recent response; each further one lets it fade by a tenth
    private volatile boolean closed;

    Calls(ClientBuilder settings) {
        transport = new Transport(settings.tls != null ? settings.tls : Transport.tls(settings.servers));
        for (String url : settings.servers) servers.add(new Server(url, transport));
        bearer = settings.bearer;
        timeout = Clock.nanos(settings.timeout);
        patience = Clock.nanos(settings.patience);
        poll = Clock.nanos(settings.poll) / Clock.SECOND * Clock.SECOND;
        observers = List.copyOf(settings.observers);
    }

    Tries tries(Bounds bounds) {
        return tries(bounds, Optional.empty());
    }

    /** The tries of a call, with its own patience if it has one. */
    Tries tries(Bounds bounds, Optional<Duration> own) {
        return new Tries(bounds, own.map(Clock::nanos).orElse(patience), poll);
    }

    /**
     * A call that is sent until a server gives a final response, the call's deadline passes, or all servers have failed for as long as
     * the client's patience. Any call that is not {@code once} may be sent twice: an acquire carries an idempotency key, a break the
     * token of the lease, and the others have no second effect.
     */
    Sending prepare(Call call, Tries tries) {
        return new Sending(call, tries);
    }

    /** Sends a call that no caller waits for. */
    Sending send(Call call, Bounds bounds) {
        Sending begun = prepare(call, tries(bounds));
        begun.round();
        return begun;
    }

    Answer answer(Call call, Bounds bounds) throws InterruptedException {
        return prepare(call, tries(bounds)).answer();
    }

    /** Reads all pages of a listing. */
    <T> List<T> pages(String operation, String path, String resource, String member, Function<Map<String, Object>, T> of) throws InterruptedException {
        List<T> all = new ArrayList<>();
        String cursor = "";
        do {
            String more = cursor.isEmpty() ? "" : "&cursor=" + Requests.encoded(cursor);
            Answer page = answer(Call.of(operation, resource, "GET", path + "&limit=1000" + more, Map.of()), Bounds.NONE);
            Json.objects(page.body(), member).forEach(each -> all.add(of.apply(each)));
            cursor = Json.text(page.body(), "next_cursor");
        } while (!cursor.isEmpty());
        return all;
    }

    /** Sends nothing any more, and fails the calls under way. */
    void close() {
        closed = true;
        for (Sending each : sending) each.fail(new ClosedException());
        transport.close();
    }

    /** A call under way. */
    final class Sending {
        final Call call;
        final Tries tries;
        final CompletableFuture<Answer> outcome = new CompletableFuture<>();
        private int start; // the server that this round began with
        private int asked; // how many servers of this round were asked
        private UnavailableException failure; // the last one of this round; null for none
        private volatile Future<?> step; // the try or the pause that is under way
        private volatile boolean awaited; // a caller waits for it

        private Sending(Call call, Tries tries) {
            this.call = call;
            this.tries = tries;
            sending.add(this);
            busy.begin();
            outcome.whenComplete((answer, error) -> {
                sending.remove(this);
                busy.end();
                Future<?> last = step;
                if (last != null) last.cancel(false);
            });
        }

        /** Sends the call and waits for the answer. If the thread is interrupted, it breaks the call off. */
        Answer answer() throws InterruptedException {
            awaited = true;
            try {
                if (Thread.interrupted()) throw new InterruptedException();
                round();
                return outcome.get();
            } catch (InterruptedException e) {
                fail(new ClosedException());
                throw e;
            } catch (ExecutionException e) {
                throw thrown(e.getCause());
            }
        }

        /** Sends the call and waits for the answer. An interruption meanwhile stays in the thread's flag. */
        Answer answerUninterruptibly() {
            awaited = true;
            round();
            try {
                return outcome.join(); // keeps the flag of an interruption
            } catch (CompletionException e) {
                throw thrown(e.getCause());
            }
        }

        /** Breaks the call off. */
        void fail(FencelockException why) {
            outcome.completeExceptionally(why);
        }

        /** Asks each server once, beginning with the one that answered last. */
        private void round() {
            start = first;
            asked = 0;
            failure = null;
            next();
        }

        private void next() {
            try {
                if (outcome.isDone()) return;
                if (closed) throw new ClosedException();
                boolean enough = failure != null && tries.number >= servers.size() && tries.over(0);
                if (enough || asked == servers.size() || (failure != null && call.once() && tries.ambiguous)) {
                    tries.silent++;
                    rest(failure);
                } else {
                    queue((start + asked) % servers.size());
                }
            } catch (Throwable e) {
                outcome.completeExceptionally(e); // whatever the bearer's supplier throws, too: nobody else would hear of it
            }
        }

        /** Asks a server when a connection is free for the call. The time of the try begins then. */
        private void queue(int at) {
            Server server = servers.get(at);
            Lane lane = server.lane(call, tries.waiting().kept() > 0);
            if (tries.bounds().deadline() < Clock.NEVER) {
                long left = Math.max(0, tries.bounds().deadline() + (tries.number == 0 && awaited ? timeout : 0) - Clock.now());
                under(transport.after(left, () -> {
                    tries.late = true;
                    outcome.completeExceptionally(Errors.unavailable(call, "no connection was free in time"));
                }));
            }
            lane.take(() -> {
                CompletableFuture<Answer> turn = new CompletableFuture<>();
                turn.whenComplete((answer, error) -> lane.give());
                try {
                    Future<?> late = step;
                    if (late != null) late.cancel(false);
                    if (outcome.isDone()) turn.cancel(false);
                    else ask(at, lane, turn);
                } catch (Throwable e) {
                    turn.cancel(false);
                    outcome.completeExceptionally(e); // whatever the bearer's supplier throws, too: nobody else would hear of it
                }
            });
        }

        private void ask(int at, Lane lane, CompletableFuture<Answer> asking) {
            if (tries.number == 0 && awaited) tries.begin(timeout);
            int unasked = servers.size() - asked++;
            Tries.Wait wait = tries.waiting(lane.isCrowded());
            Tries.Limit limit = tries.limit(tryLimit(), unasked, wait.kept());
            if (limit.limit() <= 0) {
                asking.cancel(false);
                failed(Errors.unavailable(call, "no response in time"));
                return;
            }
            byte[] body = call.body() == null ? null : call.body().apply(wait.left() / Clock.MILLISECOND);
            Map<String, String> headers;
            try {
                headers = headers(wait.kept() < wait.left() ? wait.kept() : 0);
            } catch (Throwable e) { // thrown by the bearer's supplier: a caller that waits gets it; else the try counts as failed
                if (awaited) throw e;
                asking.cancel(false);
                failed((UnavailableException) Errors.unavailable(call, "no bearer token: " + e.getClass().getName()).initCause(e));
                return;
            }
            tries.number++;
            long begun = Clock.now();
            long overall = Math.min(limit.limit() + wait.kept(), tries.bounds().deadline() - begun);
            Server server = servers.get(at);
            asking.whenComplete((answer, error) -> {
                if (error == null || error instanceof FencelockException) noteTime(begun, wait.kept());
            });
            under(asking);
            server.ask(asking, call, headers, body, overall, limit.probe());
            asking.whenComplete((answer, error) -> answered(at, server, answer, error));
        }

        /** Notes the try or the pause that is under way, and cancels it if the call has ended meanwhile. */
        private void under(Future<?> next) {
            step = next;
            if (outcome.isDone()) next.cancel(false);
        }

        private void answered(int at, Server server, Answer answer, Throwable error) {
            if (outcome.isDone()) return;
            if (error instanceof NoAnswer none) {
                tries.ambiguous |= none.sent;
                failed((UnavailableException) Errors.unavailable(call, server.url + ": " + none.getMessage()).from(server.url, ""));
            } else if (error instanceof FencelockException refusal && tries.done(call, refusal)) {
                first = at;
                outcome.complete(new Answer(Clock.now(), Map.of()));
            } else if (error instanceof UnavailableException unavailable) {
                failed(unavailable);
            } else if (error instanceof HeldException held) {
                first = at;
                rest(held);
            } else {
                first = at;
                if (error == null) outcome.complete(answer);
                else outcome.completeExceptionally(error);
            }
        }

        private void failed(UnavailableException error) {
            tries.failed(error);
            failure = error;
            next();
        }

        /** Pauses before the next round, or ends with the error. */
        private void rest(FencelockException error) {
            long pause;
            if (error instanceof HeldException && tries.waiting().left() > 0) {
                pause = tries.held();
            } else {
                if (!(error instanceof UnavailableException unavailable) || (call.once() && tries.ambiguous)) {
                    outcome.completeExceptionally(error);
                    return;
                }
                pause = tries.nextPause(unavailable);
                if (tries.over(pause)) {
                    outcome.completeExceptionally(error);
                    return;
                }
                Retry retry = new Retry(unavailable, tries.number, Duration.ofNanos(tries.failing()), Duration.ofNanos(pause));
                if (!call.quiet()) observe(observer -> observer.retried(retry));
            }
            under(transport.after(pause, this::round));
        }

        /** How many nanoseconds a try may take: four times the slowest recent response, doubled after each round in which no server
         * gave a final response. So the client waits for slow servers, and leaves frozen ones soon. A call that is sent once gets
         * the whole timeout, because giving it up leaves its caller in doubt. */
        private long tryLimit() {
            if (call.once()) return timeout;
            long usual = Math.max(Tries.SHORTEST_TRY, 4 * slowest);
            return Math.min(timeout, usual << Math.min(tries.silent, 16));
        }

        private void noteTime(long begun, long waited) {
            if (waited == 0) slowest = Math.max(Clock.now() - begun, slowest * 9 / 10); // the time of a request that waited in the queue does not count
        }

        private Map<String, String> headers(long poll) {
            Map<String, String> headers = new HashMap<>(call.headers());
            if (call.body() != null) headers.put("Content-Type", "application/json");
            if (poll > 0) headers.put("Prefer", "wait=" + poll / Clock.SECOND); // after the poll the server keeps the place in the queue
            if (bearer != null) headers.put("Authorization", "Bearer " + credential(bearer.get()));
            return headers;
        }
    }

    /** Calls the observers. What one of them throws is logged, and does not end the call. */
    void observe(Consumer<LockObserver> what) {
        for (LockObserver observer : observers) {
            try {
                what.accept(observer);
            } catch (Throwable e) {
                LOG.log(System.Logger.Level.WARNING, "an observer has failed", e);
            }
        }
    }

    Health health() throws InterruptedException {
        Map<String, CompletableFuture<String>> asked = new LinkedHashMap<>();
        for (Server server : servers) asked.put(server.url, server.ready(timeout));
        Map<String, String> found = new LinkedHashMap<>();
        try {
            for (Map.Entry<String, CompletableFuture<String>> each : asked.entrySet()) found.put(each.getKey(), each.getValue().get());
        } catch (ExecutionException e) {
            throw new IllegalStateException(e.getCause());
        }
        return new Health(found.containsValue(""), Collections.unmodifiableMap(found));
    }

    /** The exception of a call for its caller, whose stack trace it gets: another thread made it. */
    private static RuntimeException thrown(Throwable cause) {
        if (cause instanceof Error error) throw error;
        if (!(cause instanceof RuntimeException exception)) return new IllegalStateException("a supplier of the bearer token threw what it does not declare", cause);
        if (exception instanceof FencelockException) exception.fillInStackTrace();
        return exception;
    }

    /** A bearer token without the white space around it. The exception for a malformed token must not show the token. */
    private static String credential(String bearer) {
        String text = bearer.strip();
        if (text.isEmpty() || !text.chars().allMatch(c -> c > ' ' && c < 0x7f)) {
            throw new IllegalArgumentException("the bearer token is empty, or has characters that no token has");
        }
        return text;
    }
}
