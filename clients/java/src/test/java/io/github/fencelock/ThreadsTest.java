package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.parallel.Isolated;

/** The threads of this process are counted, or interrupted at random while another one spins: no other test runs meanwhile. */
@Isolated
@Timeout(60)
class ThreadsTest {
    private static final LockOptions OPTIONS = LockOptions.defaults();

    @Test
    void manyLeasesHaveFewThreads() throws Exception {
        try (Service service = new Service(); FencelockClient client = FencelockClient.of(service.url())) {
            List<Lease> leases = new ArrayList<>();
            for (int n = 0; n < 200; n++) leases.add(client.lock("r" + n, OPTIONS.ttl(Duration.ofSeconds(3))));
            service.hold.put("POST /leases/current/extend", true); // extends get no response
            for (int n = 0; n < 200; n++) service.await("POST /leases/current/extend");
            long threads = Thread.getAllStackTraces().keySet().stream().filter(t -> t.getName().startsWith("fencelock")).count();
            assertTrue(threads <= 6, threads + " threads");
            for (Lease lease : leases) assertTrue(lease.finish().isPresent() || lease.wasReleased());
        }
    }

    private static Set<Thread> threadsOfClients() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(t -> t.getName().startsWith("fencelock") || t.getName().startsWith("HttpClient")).collect(Collectors.toSet());
    }

    /** Close ends all connections, even after a call of an interrupted thread. The HTTP client of older versions of Java counts such a call as under way for ever. */
    @Test
    void aClosedClientLeavesNoThreadAndNoConnection() throws Exception {
        Set<Thread> others = threadsOfClients();
        try (Connections server = new Connections()) {
            FencelockClient busy = FencelockClient.of(server.url());
            Lease kept = busy.lock("a", OPTIONS);
            for (int n = 0; n < 3; n++) {
                FutureTask<Lease> waiting = new FutureTask<>(() -> busy.acquire("held", OPTIONS));
                Thread thread = new Thread(waiting);
                thread.start();
                server.held.take();
                thread.interrupt();
                assertInstanceOf(InterruptedException.class, assertThrows(ExecutionException.class, waiting::get).getCause());
            }
            Set<Thread> ours = threadsOfClients();
            ours.removeAll(others);
            assertTrue(ours.size() > 1, ours.toString());
            busy.close();
            assertTrue(kept.isLost());
            assertTrue(server.awaitEnds() > 3);
            for (Thread thread : ours) {
                thread.join(10_000);
                assertFalse(thread.isAlive(), thread.getName());
            }
        }
    }

    /**
     * Interruptions at random instants: the thread sees each as an InterruptedException or by its flag. There are more than 20, for a second or for as
     * long as the property says.
     */
    @Test
    @Timeout(600)
    void noInterruptionGetsLost() throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(Integer.getInteger("fencelock.interrupts.seconds", 1));
        AtomicInteger sent = new AtomicInteger();
        AtomicInteger seen = new AtomicInteger();
        AtomicBoolean over = new AtomicBoolean();
        Thread locking = Thread.currentThread();
        Thread interrupting = new Thread(() -> {
            while (System.nanoTime() < until || sent.get() <= 20) {
                int before = seen.get();
                LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(3_000_000));
                sent.incrementAndGet();
                locking.interrupt();
                long patience = System.nanoTime() + TimeUnit.SECONDS.toNanos(10);
                while (seen.get() == before && System.nanoTime() < patience) Thread.onSpinWait();
            }
            over.set(true);
        });
        interrupting.start();
        try (Service service = new Service(); FencelockClient client = FencelockClient.of(service.url())) {
            LeaseLock lock = client.asLock("lock", OPTIONS.interruptOnLoss());
            for (int n = 0; !over.get(); n++) {
                try {
                    once(client, lock, n % 5);
                } catch (InterruptedException e) {
                    seen.incrementAndGet();
                }
                if (Thread.interrupted()) seen.incrementAndGet();
            }
        }
        interrupting.join();
        if (Thread.interrupted()) seen.incrementAndGet();
        assertEquals(sent.get(), seen.get());
    }

    private static void once(FencelockClient client, LeaseLock lock, int kind) throws InterruptedException {
        switch (kind) {
            case 0 -> lock.lock();
            case 1 -> lock.lockInterruptibly();
            case 2 -> assertTrue(lock.tryLock());
            case 3 -> assertTrue(lock.tryLock(1, TimeUnit.SECONDS));
            default -> {
                client.withLock("a", OPTIONS.interruptOnLoss(), Lease::token);
                return;
            }
        }
        lock.unlock();
    }
}
