package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Supplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client against a small service in this process: what Java adds to the protocol. */
@Timeout(60)
class ClientTest {
    private static final LockOptions OPTIONS = LockOptions.defaults();
    private static final LockOptions NO_WAIT = OPTIONS.waitAtMost(Duration.ZERO);
    /** For an acquire that the service refuses. The wait of a second gives a busy machine time to respond. */
    private static final LockOptions SHORT_WAIT = OPTIONS.waitAtMost(Duration.ofSeconds(1));

    /** A short TTL, so that the first extension comes soon, but long enough for an extension on a busy machine. */
    private static final Duration SHORT = Duration.ofMillis(1500);

    private Service service;
    private FencelockClient client;

    /** The first requests of a process also load classes. On a busy machine that takes longer than a try at one server may take. */
    @BeforeAll
    static void warmUp() throws Exception {
        try (Service service = new Service(); FencelockClient client = FencelockClient.of(service.url()); Lease lease = client.lock("a", OPTIONS)) {
            lease.extend();
        }
    }

    @BeforeEach
    void start() throws IOException {
        service = new Service();
        client = FencelockClient.builder(service.url()).bearer(() -> " secret-bearer\n").holder("me").build();
    }

    @AfterEach
    void stop() {
        client.close();
        service.close();
    }

    /** Runs work in a new thread. */
    private static <T> FutureTask<T> inThread(java.util.concurrent.Callable<T> work, AtomicReference<Thread> thread) {
        FutureTask<T> task = new FutureTask<>(work);
        thread.set(new Thread(task));
        thread.get().start();
        return task;
    }

    private static Throwable failureOf(FutureTask<?> task) {
        return assertThrows(ExecutionException.class, task::get).getCause();
    }

    // Leases.

    @Test
    void aLock() throws Exception {
        Lease lease = client.lock("orders/42", OPTIONS.ttl(Duration.ofSeconds(30)).waitAtMost(Duration.ofSeconds(5)));
        try (lease) {
            assertEquals(List.of("orders/42", 1L, Duration.ofSeconds(30), 0), List.of(lease.resource(), lease.token(), lease.ttl(), lease.slot()));
            assertTrue(lease.validity().compareTo(Duration.ofSeconds(20)) > 0 && lease.untilNanoTime() > System.nanoTime());
            lease.check();
        }
        assertTrue(lease.isLost());
        assertThrows(LeaseLostException.class, lease::check);
        assertEquals(List.of("POST /locks", "DELETE /leases/current"), service.trace());
        Service.Called acquire = service.calls.get(0);
        assertEquals(Set.of("resource", "ttl_ms", "holder", "wait_ms"), acquire.body().keySet());
        assertTrue(Json.number(acquire.body(), "wait_ms") > 4000);
        assertEquals("Bearer secret-bearer", acquire.header("authorization"));
        assertTrue(acquire.header("idempotency-key").length() >= 16);
        assertEquals("secret-id", service.calls.get(1).header("fencelock-lease"));
        assertEquals("", acquire.header("upgrade"), "it tries no HTTP/2");
    }

    @Test
    void optionsAreSent() throws Exception {
        LockOptions all = NO_WAIT.ttl(Duration.ofSeconds(3)).minHold(Duration.ofMillis(1)).maxHold(Duration.ofSeconds(4)).slots(3).holder("worker").metadata(Map.of("job", List.of(1, "two", true)));
        Lease lease = client.acquire("jobs", all);
        assertEquals(Map.of("resource", "jobs", "ttl_ms", 3000, "min_hold_ms", 1, "max_hold_ms", 4000, "slots", 3, "holder", "worker", "metadata", Map.of("job", List.of(1, "two", true))),
                service.calls.get(0).body());
        assertEquals("jobs#slot1", lease.resource());
        assertEquals(1, lease.slot());
        assertThrows(IllegalArgumentException.class, () -> OPTIONS.ttl(Duration.ofMillis(-1)));
        assertThrows(IllegalArgumentException.class, () -> OPTIONS.metadata(new Object()));
    }

    @Test
    void severalResources() throws Exception {
        Lease lease = client.acquire(List.of("a", "b"), OPTIONS);
        assertEquals(List.of("a", "b"), lease.parts().stream().map(Lease.Part::resource).toList());
        assertEquals("a, b", lease.resource());
        assertThrows(IllegalStateException.class, lease::token);
    }

    /** The response takes longer than the first tries wait for it. */
    @Test
    void aWriteIsWaitedFor() throws Exception {
        Lease lease = client.acquire("a", OPTIONS);
        service.takes.put("PUT /guarded/a", 1500);
        service.answers.put("PUT /guarded/a", Map.of("resource", "a"));
        assertEquals("a", client.write(lease, 1).resource());
        assertEquals(1, Collections.frequency(service.trace(), "PUT /guarded/a"), "a second one could undo a later write");
    }

    /** A write whose response is lost may have taken effect, and a second one could undo a later write of the same lease. */
    @Test
    void aWriteIsNotRepeated() throws Exception {
        Lease lease = client.acquire("a", OPTIONS);
        for (String call : List.of("PUT /guarded/a", "DELETE /guarded/a")) {
            service.refuse.put(call, new Object[] {503, "timeout"});
            assertThrows(UnavailableException.class, () -> {
                if (call.startsWith("PUT")) client.write(lease, 1);
                else client.delete(lease);
            });
            assertEquals(1, Collections.frequency(service.trace(), call), call);
        }
    }

    @Test
    void secretsAreNotShown() throws Exception {
        Lease lease = client.acquire(List.of("a", "b"), OPTIONS);
        service.refuse.put("DELETE /leases/current", new Object[] {403, "forbidden"});
        FencelockException error = assertThrows(DeniedException.class, lease::release);
        StringWriter trace = new StringWriter();
        error.printStackTrace(new PrintWriter(trace));
        for (String text : List.of(lease.toString(), lease.parts().toString(), client.toString(), error.toString(), trace.toString())) {
            assertFalse(text.contains("secret-"), text);
        }
    }

    @Test
    void errorsSayWhatHappened() throws Exception {
        service.refuse.put("POST /locks", new Object[] {409, "lock-held"});
        HeldException held = assertThrows(HeldException.class, () -> client.acquire("a\u202e", SHORT_WAIT));
        assertEquals(List.of("lock-held", 409, "a\u202e", service.url(), "req-7", "other", 7L, Duration.ofMillis(70)),
                List.of(held.kind(), held.status(), held.resource(), held.url(), held.requestId(), held.holder(), held.token(), held.remaining()));
        assertEquals("acquire a\\u{202e}: No (409): the test says so", held.getMessage());
        assertTrue(held.getStackTrace().length > 0 && List.of(held.getStackTrace()).toString().contains("errorsSayWhatHappened"), "the trace is that of the caller");
        assertEquals(Optional.empty(), client.tryLock("a", SHORT_WAIT));
        for (Map.Entry<Object[], Class<?>> each : Map.<Object[], Class<?>>of(new Object[] {401, "unauthorized"}, DeniedException.class, new Object[] {404, "lease-not-held"}, LeaseLostException.class,
                new Object[] {412, "of-a-later-version"}, RefusedException.class).entrySet()) {
            service.refuse.put("GET /leases/current", each.getKey());
            assertSame(each.getValue(), assertThrows(FencelockException.class, () -> client.lease("id")).getClass());
        }
    }

    @Test
    void noServerIsUp() throws Exception {
        int port;
        try (ServerSocket free = new ServerSocket(0)) {
            port = free.getLocalPort();
        }
        List<Retry> retries = new ArrayList<>();
        try (FencelockClient lonely = FencelockClient.builder("http://127.0.0.1:" + port).patience(Duration.ofMillis(200)).onRetry(retries::add).build()) {
            UnavailableException error = assertThrows(UnavailableException.class, () -> lonely.acquire("a", NO_WAIT));
            assertTrue(error.getMessage().contains("is the server up?"), error.getMessage());
            assertEquals("http://127.0.0.1:" + port, error.url());
        }
        assertFalse(retries.isEmpty());
    }

    /** The exception at the end of a wait shows for what the call waited: for the holder, or for a server. */
    @Test
    void whatEndedAWait() throws Exception {
        service.refuse.put("POST /locks", new Object[] {409, "wait-timeout"});
        LockOptions patient = OPTIONS.patience(Duration.ofSeconds(30)); // even a busy machine responds in this time
        HeldException held = assertThrows(HeldException.class, () -> client.acquire("a", patient.waitAtMost(Duration.ofMillis(300))));
        assertTrue(held.timedOut() && held.holder().equals("other"), held.getMessage());
        assertFalse(assertThrows(HeldException.class, () -> client.acquire("a", patient.waitAtMost(Duration.ZERO))).timedOut(), "it has not waited");
        service.refuse.put("POST /locks", new Object[] {503, "no-quorum"});
        assertTrue(assertThrows(UnavailableException.class, () -> client.acquire("a", OPTIONS.waitAtMost(Duration.ofMillis(300)))).timedOut());
        LockOptions impatient = OPTIONS.waitAtMost(Duration.ofMinutes(1)).patience(Duration.ofMillis(100));
        assertFalse(assertThrows(UnavailableException.class, () -> client.acquire("a", impatient)).timedOut(), "its patience ended it");
        service.hold.put("POST /locks", true);
        assertTrue(assertThrows(UnavailableException.class, () -> client.acquire("a", OPTIONS.waitAtMost(Duration.ofMillis(300)))).timedOut());
    }

    @Test
    void aServerThatIsNotOne() throws Exception {
        HttpServer other = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
        other.createContext("/locks", exchange -> {
            exchange.getRequestBody().readAllBytes();
            boolean post = exchange.getRequestMethod().equals("POST");
            if (!post) exchange.getResponseHeaders().set("Location", "https://elsewhere.example/leases/secret");
            exchange.sendResponseHeaders(post ? 200 : 307, 0);
            byte[] much = new byte[1 << 20];
            try (var body = exchange.getResponseBody()) {
                for (int n = 0; post && n < 64; n++) body.write(much);
            } catch (IOException e) {
                tooMuch.complete(true); // the client has hung up
            }
        });
        other.start();
        try (FencelockClient lost = FencelockClient.builder("http://127.0.0.1:" + other.getAddress().getPort()).build()) {
            assertTrue(assertThrows(RefusedException.class, () -> lost.acquire("a", OPTIONS)).getMessage().contains("too long"));
            String message = assertThrows(RefusedException.class, () -> lost.inspect("a")).getMessage();
            assertTrue(message.contains("redirect to https://elsewhere.example,") && !message.contains("secret"), message);
            assertTrue(tooMuch.get(10, TimeUnit.SECONDS));
        } finally {
            other.stop(0);
        }
    }

    private final CompletableFuture<Boolean> tooMuch = new CompletableFuture<>();

    @Test
    void wrongSettings() {
        for (String url : List.of("", "ftp://a", "http://user:secret@a", "http://a?b", "no url")) {
            assertFalse(assertThrows(IllegalArgumentException.class, () -> FencelockClient.of(url)).getMessage().contains("secret"));
        }
        assertThrows(IllegalArgumentException.class, () -> FencelockClient.builder("http://a").poll(Duration.ofMillis(10)).build());
        assertThrows(IllegalArgumentException.class, () -> client.acquire("\ud800", OPTIONS));
        try (FencelockClient wrong = FencelockClient.builder(service.url()).bearer(() -> "secret with spaces").build()) {
            assertFalse(assertThrows(IllegalArgumentException.class, () -> wrong.inspect("a")).getMessage().contains("secret"));
        }
    }

    // The loss of a lease.

    @Test
    void workLearnsOfTheLoss() throws Exception {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        LeaseLostException loss = assertThrows(LeaseLostException.class, () -> client.withLock("a", OPTIONS.ttl(SHORT), lease -> {
            LeaseLostException first = lease.lost().toCompletableFuture().join();
            assertTrue(lease.isLost());
            assertTrue(first.getMessage().contains("is lost"), first.getMessage());
            return null;
        }));
        assertTrue(loss.getMessage().contains("the test says so"), loss.getMessage());
    }

    @Test
    void theLargestMarginLeavesTimeToExtend() throws Exception {
        LockOptions options = OPTIONS.ttl(Duration.ofSeconds(3)).margin(Duration.ofMinutes(1)).interruptOnLoss();
        client.withLock("a", options, lease -> {
            assertFalse(new CountDownLatch(1).await(2, TimeUnit.SECONDS));
            return null;
        });
    }

    @Test
    void workIsInterrupted() throws Exception {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        LockOptions options = OPTIONS.ttl(SHORT).interruptOnLoss();
        assertThrows(LeaseLostException.class, () -> client.withLock("a", options, lease -> {
            new CountDownLatch(1).await();
            return null;
        }));
        assertFalse(Thread.currentThread().isInterrupted());
        // If the work does not notice the interruption by the loss, the thread is not interrupted afterwards. An interruption by the work itself stays.
        assertThrows(LeaseLostException.class, () -> client.withLock("a", options, lease -> {
            while (!Thread.currentThread().isInterrupted()) Thread.onSpinWait();
            return null;
        }));
        assertFalse(Thread.currentThread().isInterrupted());
        service.refuse.clear();
        client.withLock("a", options.ttl(Duration.ofSeconds(30)), lease -> {
            Thread.currentThread().interrupt();
            return null;
        });
        assertTrue(Thread.interrupted());
    }

    @Test
    void anExceptionOfWorkComesFirst() {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        assertThrows(IOException.class, () -> client.<Void, Exception>withLock("a", OPTIONS.ttl(SHORT), lease -> {
            lease.lost().toCompletableFuture().join();
            throw new IOException("of the work");
        }));
    }

    @Test
    void electStandsAgain() throws Exception {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        List<Long> led = new ArrayList<>();
        long result = client.<Long, Exception>elect("leader", OPTIONS.ttl(SHORT), lease -> {
            led.add(lease.token());
            if (lease.token() == 1) lease.lost().toCompletableFuture().join();
            if (lease.token() == 2) {
                lease.lost().toCompletableFuture().join();
                throw new IOException("it is dropped");
            }
            return lease.token();
        });
        assertEquals(3, result);
        assertEquals(List.of(1L, 2L, 3L), led);
        assertThrows(IOException.class, () -> client.<Void, Exception>elect("leader", OPTIONS, lease -> {
            throw new IOException("of a leader that leads");
        }));
    }

    // Threads.

    @Test
    void itNests() throws Exception {
        long tokens = client.<Long, Exception>withLock("a", OPTIONS, outer -> {
            assertSame(outer, Lease.current().orElseThrow());
            client.withLock("a", OPTIONS, inner -> {
                assertSame(outer, inner);
                return null;
            });
            client.withLock("b", OPTIONS, other -> {
                assertSame(other, Lease.current().orElseThrow());
                return null;
            });
            assertTrue(assertThrows(RefusedException.class, () -> client.acquire(List.of("a", "b"), OPTIONS)).getMessage().contains("wait for itself"));
            return outer.token();
        });
        assertEquals(1, tokens);
        assertEquals(Optional.empty(), Lease.current());
        assertEquals(List.of("POST /locks", "POST /locks", "DELETE /leases/current", "DELETE /leases/current"), service.trace());
    }

    /** The fake service gives every call the first slot. */
    @Test
    void aSlotIsJoinedByItsNameToo() throws Exception {
        client.withLock("jobs", OPTIONS.slots(2), slot -> {
            client.withLock("jobs", OPTIONS.slots(2), () -> assertSame(slot, Lease.current().orElseThrow()));
            client.withLock("jobs#slot1", OPTIONS, () -> assertSame(slot, Lease.current().orElseThrow()));
            LeaseLock lock = client.asLock("jobs#slot1", OPTIONS);
            lock.lock();
            assertSame(slot, lock.lease());
            lock.unlock();
            assertThrows(RefusedException.class, () -> client.acquire("jobs#slot1", OPTIONS), "it would wait for itself");
            assertThrows(RefusedException.class, () -> client.acquire("jobs", OPTIONS.slots(1)), "the only slot is its own");
            return null;
        });
        assertEquals(List.of("POST /locks", "DELETE /leases/current"), service.trace());
    }

    /** The resource and its other slots are other locks, so the service is asked whether they are free. */
    @Test
    void whatASlotDoesNotKeepOthersFrom() throws Exception {
        client.withLock("jobs", OPTIONS.slots(2), slot -> {
            assertEquals("jobs", client.<String, Exception>withLock("jobs", OPTIONS, Lease::resource));
            client.acquire("jobs", OPTIONS.slots(2)).release();
            client.acquire("jobs#slot2", OPTIONS).release();
            return null;
        });
        assertEquals(1, client.<Integer, Exception>withLock("jobs", OPTIONS, plain -> client.withLock("jobs", OPTIONS.slots(2), Lease::slot)));
    }

    @Test
    void aLockOfTheJdk() throws Exception {
        LeaseLock lock = client.asLock("a", OPTIONS);
        lock.lock();
        assertTrue(lock.tryLock());
        assertEquals(1, lock.lease().token());
        assertEquals(1L, client.<Long, Exception>withLock("a", OPTIONS, Lease::token));
        lock.unlock();
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
        assertThrows(UnsupportedOperationException.class, lock::newCondition);
        assertEquals(List.of("POST /locks", "DELETE /leases/current"), service.trace());
        service.refuse.put("POST /locks", new Object[] {409, "lock-held"});
        assertFalse(lock.tryLock());
        assertFalse(lock.tryLock(-1, TimeUnit.SECONDS));
        service.refuse.clear();
        Thread.currentThread().interrupt();
        lock.lock(); // an interruption does not end it
        assertTrue(Thread.interrupted());
        lock.unlock();
    }

    @Test
    void aLockOfTheJdkThatIsLost() throws Exception {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        LeaseLock lock = client.asLock("a", OPTIONS.ttl(SHORT));
        lock.lock();
        lock.lease().lost().toCompletableFuture().join();
        assertThrows(LeaseLostException.class, lock::unlock);
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    @Test
    void anInterruptedWaitIsCancelled() throws Exception {
        service.hold.put("POST /locks", true);
        AtomicReference<Thread> thread = new AtomicReference<>();
        FutureTask<Lease> waiting = inThread(() -> client.acquire("a", OPTIONS), thread);
        service.await("POST /locks");
        thread.get().interrupt();
        assertInstanceOf(InterruptedException.class, failureOf(waiting));
        service.await("POST /cancel");
        assertEquals(service.calls.get(0).header("idempotency-key"), service.calls.get(1).header("idempotency-key"));
    }

    @Test
    void anInterruptedThreadReleases() throws Exception {
        Lease lease = client.lock("a", OPTIONS);
        Thread.currentThread().interrupt();
        lease.close();
        assertTrue(Thread.interrupted());
        service.await("DELETE /leases/current");
    }

    @Test
    void aSupplierThatFailsAfterATryInDoubt() throws Exception {
        service.refuse.put("POST /locks", new Object[] {503, "no-quorum"});
        AtomicInteger asked = new AtomicInteger();
        Supplier<String> failsOnce = () -> {
            if (asked.incrementAndGet() == 2) throw new IllegalStateException("of the supplier");
            return "bearer";
        };
        try (FencelockClient other = FencelockClient.builder(service.url()).bearer(failsOnce).build()) {
            assertEquals("of the supplier", assertThrows(IllegalStateException.class, () -> other.acquire("a", OPTIONS)).getMessage());
            service.await("POST /cancel");
        }
    }

    /** The threads are virtual if this Java has virtual threads. */
    @Test
    void manyThreads() throws Exception {
        ExecutorService threads;
        try {
            threads = (ExecutorService) Executors.class.getMethod("newVirtualThreadPerTaskExecutor").invoke(null);
        } catch (NoSuchMethodException e) {
            threads = Executors.newCachedThreadPool();
        }
        List<Future<Long>> tokens = new ArrayList<>();
        for (int n = 0; n < 200; n++) {
            String name = "r" + n;
            tokens.add(threads.submit(() -> client.<Long, Exception>withLock(name, OPTIONS.interruptOnLoss(), outer -> client.withLock(name, OPTIONS, Lease::token))));
        }
        for (Future<Long> token : tokens) assertTrue(token.get() > 0);
        threads.shutdown();
    }

    @Test
    void closeEndsAll() throws Exception {
        service.hold.put("POST /locks", true);
        AtomicReference<Thread> thread = new AtomicReference<>();
        FutureTask<Lease> waiting = inThread(() -> client.acquire("a", OPTIONS), thread);
        service.await("POST /locks");
        service.hold.clear();
        CountDownLatch began = new CountDownLatch(1);
        FutureTask<Object> working = inThread(() -> client.withLock("b", OPTIONS, lease -> {
            began.countDown();
            throw lease.lost().toCompletableFuture().join();
        }), thread);
        began.await();
        Lease left = client.lock("c", OPTIONS);
        client.close();
        assertInstanceOf(ClosedException.class, failureOf(waiting));
        assertTrue(failureOf(working).getMessage().contains("its client was closed"));
        assertTrue(left.isLost());
        left.lost().toCompletableFuture().join();
        assertThrows(LeaseLostException.class, left::close);
        assertThrows(ClosedException.class, () -> client.acquire("a", NO_WAIT));
        assertThrows(ClosedException.class, () -> client.inspect("a"));
        assertTrue(service.trace().contains("POST /cancel"));
        assertTrue(service.trace().contains("DELETE /leases/current"));
    }

    @Test
    void aBreakIsNotRepeatedBlindly() throws Exception {
        client.breakLock("a", 7);
        assertEquals(Map.of("resource", "a", "fencing_token", 7), service.calls.get(0).body());
        service.refuse.put("POST /breaks", new Object[] {412, "other-lease"});
        OtherLeaseException other = assertThrows(OtherLeaseException.class, () -> client.breakLock("a", 6));
        assertEquals(7, other.token());
        service.refuse.put("POST /breaks", new Object[] {503, "no-quorum"});
        int before = service.calls.size();
        assertThrows(UnavailableException.class, () -> client.breakAny("a"));
        assertEquals(before + 1, service.calls.size());
    }

    @Test
    void namesInPaths() throws Exception {
        service.answers.put("GET /locks/a%20b%2F..%2F%C3%A4", Map.of("resource", "a b/../ä", "held", false, "waiters", 2, "queue", List.of(Map.of("holder", "x", "waiting_ms", 3))));
        LockState state = client.inspect("a b/../ä");
        assertEquals(new LockState("a b/../ä", Optional.empty(), 2, List.of(new LockState.Waiter("x", Duration.ofMillis(3)))), state);
        assertEquals("a%20b%2F..%2F%C3%A4", service.calls.get(0).header("fencelock-resource"));
    }
}
