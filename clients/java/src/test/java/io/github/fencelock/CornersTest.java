package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Supplier;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client in a program that interrupts its threads, has callbacks that throw, or closes the client. */
@Timeout(120)
class CornersTest {
    private static final LockOptions OPTIONS = LockOptions.defaults();
    private static final Duration SHORT = Duration.ofMillis(1500);
    private static final Object[] GONE = {404, "lease-not-held"};

    private Service service;
    private FencelockClient client;

    @BeforeEach
    void start() throws IOException {
        service = new Service();
        client = FencelockClient.of(service.url());
    }

    @AfterEach
    void stop() {
        client.close();
        service.close();
    }

    // The contract of java.util.concurrent.locks.Lock, sentence by sentence.

    /** "tryLock() acquires the lock if it is available": it ignores an interruption, and the thread's flag stays set. */
    @Test
    void tryLockOfAnInterruptedThread() {
        LeaseLock lock = client.asLock("a", OPTIONS);
        Thread.currentThread().interrupt();
        assertTrue(lock.tryLock());
        assertTrue(Thread.interrupted());
        lock.unlock();
        service.refuse.put("POST /locks", new Object[] {409, "lock-held"});
        Thread.currentThread().interrupt();
        assertFalse(lock.tryLock());
        assertTrue(Thread.interrupted());
    }

    /** "If the current thread has its interrupted status set on entry, InterruptedException is thrown and the status is cleared": even if the thread holds the lock. */
    @Test
    void anInterruptionBeforeReentry() throws Exception {
        LeaseLock lock = client.asLock("a", OPTIONS);
        lock.lock();
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, lock::lockInterruptibly);
        assertFalse(Thread.currentThread().isInterrupted());
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> lock.tryLock(1, TimeUnit.SECONDS));
        assertFalse(Thread.currentThread().isInterrupted());
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> client.withLock("a", OPTIONS, Lease::token));
        assertFalse(Thread.currentThread().isInterrupted());
        Thread.currentThread().interrupt();
        lock.lock();
        assertTrue(Thread.interrupted());
        lock.unlock();
        lock.unlock();
        assertThrows(IllegalMonitorStateException.class, lock::unlock);
    }

    /** An interrupted thread sends no request, so there is nothing to give up. */
    @Test
    void anInterruptionBeforeTheFirst() {
        LeaseLock lock = client.asLock("a", OPTIONS);
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, lock::lockInterruptibly);
        assertEquals(List.of(), service.trace());
    }

    /** An interruption does not end lock(): it keeps its request and so its place in the queue, and sends no second one. */
    @Test
    void lockIsNotInterruptible() throws Exception {
        service.takes.put("POST /locks", 300);
        Thread locking = Thread.currentThread();
        FutureTask<Void> interrupts = new FutureTask<>(() -> {
            service.await("POST /locks");
            locking.interrupt();
            return null;
        });
        new Thread(interrupts).start();
        LeaseLock lock = client.asLock("a", OPTIONS);
        lock.lock();
        assertTrue(Thread.interrupted());
        interrupts.get();
        lock.unlock();
        assertEquals(List.of("POST /locks", "DELETE /leases/current"), service.trace());
    }

    /** If lock() throws, the thread is still interrupted. */
    @Test
    void aLockThatIsRefusedKeepsTheInterruption() {
        service.refuse.put("POST /locks", new Object[] {403, "forbidden"});
        Thread.currentThread().interrupt();
        assertThrows(DeniedException.class, client.asLock("a", OPTIONS)::lock);
        assertTrue(Thread.interrupted());
    }

    // An interruption by somebody else, while the loss of the lease interrupts, too.

    /** After the work has noticed the interruption by the loss, a second one comes from somebody else (such as shutdownNow): the client must not clear it. */
    @Test
    void anInterruptionAfterThatOfTheLoss() throws Exception {
        service.refuse.put("POST /leases/current/extend", GONE);
        Thread working = Thread.currentThread();
        assertThrows(LeaseLostException.class, () -> client.withLock("a", OPTIONS.ttl(SHORT).interruptOnLoss(), lease -> {
            assertThrows(InterruptedException.class, () -> new CountDownLatch(1).await());
            LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(200)); // the work cleans up
            working.interrupt();
            return null;
        }));
        assertTrue(Thread.interrupted());
    }

    @Test
    void aSecondInterruptionAtTheEndOfTheWork() {
        service.refuse.put("POST /leases/current/extend", GONE);
        Thread working = Thread.currentThread();
        assertThrows(LeaseLostException.class, () -> client.withLock("a", OPTIONS.ttl(SHORT).interruptOnLoss(), lease -> {
            try {
                new CountDownLatch(1).await();
            } finally {
                working.interrupt();
            }
            return null;
        }));
        assertTrue(Thread.interrupted());
    }

    /** A leader that its executor has interrupted does not become a candidate again. */
    @Test
    void anInterruptedLeaderEnds() {
        service.refuse.put("POST /leases/current/extend", GONE);
        Thread leading = Thread.currentThread();
        AtomicInteger led = new AtomicInteger();
        assertThrows(InterruptedException.class, () -> client.elect("leader", OPTIONS.ttl(SHORT).interruptOnLoss(), lease -> {
            if (led.incrementAndGet() == 2) return null; // wrong: it leads again; this ends the test
            leading.interrupt(); // comes before the loss
            while (!lease.isLost()) Thread.onSpinWait();
            new CountDownLatch(1).await();
            return null;
        }));
        assertEquals(1, led.get());
    }

    // Callbacks that throw.

    private ClientBuilder throwingFrom(int from, int times, Supplier<? extends Throwable> thrown) {
        AtomicInteger asked = new AtomicInteger();
        return FencelockClient.builder(service.url()).bearer(() -> {
            int n = asked.incrementAndGet();
            if (n >= from && n < from + times) throw CornersTest.<RuntimeException>sneaky(thrown.get());
            return "bearer";
        });
    }

    @SuppressWarnings("unchecked")
    private static <X extends Throwable> X sneaky(Throwable e) throws X {
        throw (X) e;
    }

    /** An Error, and a checked exception of a supplier in another language of the JVM, end the call and reach its caller. */
    @Test
    void whateverASupplierThrows() throws Exception {
        for (Supplier<? extends Throwable> thrown : List.<Supplier<? extends Throwable>>of(AssertionError::new, () -> new IOException("of the supplier"), IllegalStateException::new)) {
            try (FencelockClient other = throwingFrom(1, 1, thrown).build()) {
                FutureTask<Throwable> failing = new FutureTask<>(() -> assertThrows(Throwable.class, () -> other.acquire("a", OPTIONS)));
                new Thread(failing).start();
                Throwable failure = failing.get(10, TimeUnit.SECONDS);
                assertTrue(failure.getClass() == thrown.get().getClass() || failure.getCause().getClass() == thrown.get().getClass(), failure.toString());
            }
            try (FencelockClient other = throwingFrom(2, 1, thrown).build()) {
                other.withLock("a", OPTIONS.ttl(SHORT), lease -> {
                    service.await("POST /leases/current/extend");
                    lease.check();
                    return null;
                });
            }
            try (FencelockClient other = throwingFrom(2, Integer.MAX_VALUE - 2, thrown).build()) {
                assertThrows(LeaseLostException.class, () -> other.withLock("a", OPTIONS.ttl(SHORT), lease -> lease.lost().toCompletableFuture().get(10, TimeUnit.SECONDS)));
            }
        }
    }

    /** The lease is still released. Otherwise the resource would stay locked although nobody uses it. */
    @Test
    void aSupplierThatFailsAtTheRelease() throws Exception {
        try (FencelockClient other = throwingFrom(2, 1, IllegalStateException::new).build()) {
            other.withLock("a", OPTIONS, Lease::token);
            service.await("DELETE /leases/current");
        }
    }

    @Test
    void anObserverThatThrows() throws Exception {
        service.refuse.put("POST /locks", new Object[] {503, "no-quorum"});
        ClientBuilder settings = FencelockClient.builder(service.url()).onRetry(retry -> {
            service.refuse.clear();
            throw new AssertionError("of the observer");
        });
        try (FencelockClient other = settings.build()) {
            FutureTask<Lease> locking = new FutureTask<>(() -> other.lock("a", OPTIONS));
            new Thread(locking).start();
            locking.get(10, TimeUnit.SECONDS).close();
        }
    }

    // What no server accepts is refused before anything is sent.

    @Test
    void optionsAreChecked() {
        String many = "x".repeat(300);
        List<org.junit.jupiter.api.function.Executable> wrong = List.of(
                () -> OPTIONS.ttl(Duration.ofMillis(99)), () -> OPTIONS.ttl(Duration.ofHours(25)), () -> OPTIONS.slots(0), () -> OPTIONS.slots(33),
                () -> OPTIONS.waitAtMost(Duration.ofMillis(-1)), () -> OPTIONS.margin(Duration.ofSeconds(-2)), () -> OPTIONS.holder(many), () -> OPTIONS.holder("a\nb"),
                () -> client.acquire("a", OPTIONS.ttl(SHORT).minHold(SHORT.multipliedBy(2))), () -> client.acquire("a", OPTIONS.ttl(SHORT).maxHold(Duration.ofSeconds(1))),
                () -> client.acquire("", OPTIONS), () -> client.acquire(many, OPTIONS), () -> client.acquire("a\nb", OPTIONS), () -> client.acquire(List.of("a", "a"), OPTIONS),
                () -> client.acquire(List.of("a", "b"), OPTIONS.slots(2)), () -> client.acquire(java.util.Collections.nCopies(17, "a"), OPTIONS));
        for (int n = 0; n < wrong.size(); n++) assertThrows(IllegalArgumentException.class, wrong.get(n), "number " + n);
        assertEquals(List.of(), service.trace());
    }

    @Test
    void callsWithoutOptionsAndWithoutAResult() throws Exception {
        AtomicInteger done = new AtomicInteger();
        client.withLock("a", () -> {
            assertEquals("a", Lease.current().orElseThrow().resource());
            done.incrementAndGet();
        });
        client.withLock("a", OPTIONS, () -> done.incrementAndGet());
        assertEquals(2, done.get());
        assertEquals("a", client.<String, RuntimeException>withLock("a", Lease::resource));
        client.lock("a").close();
        client.tryLock("a").orElseThrow().close();
    }

    // The end of a client.

    @Test
    void closeReleasesWhatIsHeld() throws Exception {
        Lease left = client.lock("a", OPTIONS);
        Thread[] working = new Thread[1];
        CountDownLatch began = new CountDownLatch(1);
        FutureTask<Object> deaf = new FutureTask<>(() -> client.withLock("b", OPTIONS, lease -> {
            began.countDown();
            service.await("DELETE /leases/current"); // the work does not look at its lease before close releases it
            service.await("DELETE /leases/current");
            return null;
        }));
        working[0] = new Thread(deaf);
        working[0].start();
        began.await();
        client.close();
        assertTrue(left.isLost());
        assertTrue(assertThrows(ExecutionException.class, deaf::get).getCause() instanceof LeaseLostException);
        assertEquals(2, service.trace().stream().filter("DELETE /leases/current"::equals).count());
    }

    @Test
    void closeIsBounded() throws Exception {
        client.lock("a", OPTIONS);
        service.hold.put("DELETE /leases/current", true);
        long begun = System.nanoTime();
        client.close();
        long took = TimeUnit.NANOSECONDS.toMillis(System.nanoTime() - begun);
        assertTrue(took < 6000, took + " ms");
    }
}
