package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/**
 * Tests the LockProvider over a real service, FENCELOCK_URL, for the properties that ShedLock's shedlock-test-support requires of each provider: those of
 * AbstractLockProviderIntegrationTest and AbstractExtensibleLockProviderIntegrationTest. They are written again here, because Debian has no jar of it.
 */
@Timeout(60)
class ShedLockTest {
    private static final Duration MINUTES = Duration.ofMinutes(5);
    private static final Duration SHORT = Duration.ofSeconds(1);
    private static final Duration SOON = Duration.ofSeconds(5); // even a busy machine extends a lock in this time

    private final FencelockClient client = FencelockClient.of(System.getenv("FENCELOCK_URL"));
    private final LockProvider provider = new FencelockLockProvider(client);

    @AfterEach
    void stop() {
        client.close();
    }

    private Optional<SimpleLock> lock(String name, Duration atMost, Duration atLeast) {
        return provider.lock(new LockConfiguration(Instant.now(), name, atMost, atLeast));
    }

    private Optional<SimpleLock> lock(String name) {
        return lock(name, MINUTES, Duration.ZERO);
    }

    private boolean isHeld(String name) throws InterruptedException {
        return client.inspect("shedlock/" + name).held();
    }

    private void awaitFree(String name) throws InterruptedException {
        client.watch("shedlock/" + name, Duration.ofMillis(20), lock -> lock.map(LockState::held).orElse(true));
    }

    // AbstractLockProviderIntegrationTest

    @Test
    void aLock() throws Exception {
        SimpleLock lock = lock("report").orElseThrow();
        assertTrue(isHeld("report"));
        assertTrue(FencelockLockProvider.current().orElseThrow().token() > 0);
        lock.unlock();
        assertFalse(isHeld("report"));
        assertEquals(Optional.empty(), FencelockLockProvider.current());
    }

    @Test
    void noSecondLock() throws Exception {
        SimpleLock lock = lock("second").orElseThrow();
        assertEquals(Optional.empty(), lock("second"), "its own thread, too, has it only once");
        assertEquals(Optional.empty(), CompletableFuture.supplyAsync(() -> lock("second")).get(), "another thread has it");
        lock.unlock();
    }

    @Test
    void independentLocks() {
        SimpleLock one = lock("one").orElseThrow();
        SimpleLock other = lock("other").orElseThrow();
        one.unlock();
        other.unlock();
    }

    @Test
    void aLockRightAfterAnUnlock() {
        for (int n = 0; n < 10; n++) {
            SimpleLock lock = lock("again").orElseThrow();
            assertEquals(Optional.empty(), lock("again"));
            lock.unlock();
        }
    }

    /** The lock ends at lockAtMostFor even if that is shorter than the shortest TTL. */
    @Test
    void lockAtMostFor() throws Exception {
        SimpleLock lock = lock("at most", Duration.ofMillis(50), Duration.ZERO).orElseThrow();
        awaitFree("at most");
        SimpleLock next = lock("at most", MINUTES, Duration.ZERO).orElseThrow();
        lock.unlock();
        assertTrue(isHeld("at most"), "the lock of the next is not unlocked");
        next.unlock();
    }

    @Test
    void lockAtLeastFor() throws Exception {
        long begun = System.nanoTime();
        lock("at least", MINUTES, SHORT).orElseThrow().unlock();
        awaitFree("at least");
        assertTrue(System.nanoTime() - begun >= SHORT.toNanos(), "it was free too early");
        lock("at least").orElseThrow().unlock();
    }

    @Test
    void lockAtLeastForKeepsItWithoutThisProcess() throws Exception {
        String name = "kept " + UUID.randomUUID(); // a new name for each run, because the lock stays held
        lock(name, MINUTES, Duration.ofSeconds(50)).orElseThrow().unlock();
        assertEquals(Optional.empty(), lock(name));
        client.close();
        try (FencelockClient other = FencelockClient.of(System.getenv("FENCELOCK_URL"))) {
            assertTrue(other.inspect("shedlock/" + name).held());
        }
    }

    /** Each thread counts under one of two locks. */
    @Test
    void onlyOneAtATime() throws Exception {
        int[] counters = new int[2];
        ExecutorService threads = Executors.newFixedThreadPool(8);
        List<Future<?>> counting = new ArrayList<>();
        for (int n = 0; n < 8; n++) {
            int which = n % 2;
            counting.add(threads.submit(() -> {
                for (int done = 0; done < 10; ) {
                    Optional<SimpleLock> lock = lock("counter " + which);
                    if (lock.isEmpty()) continue;
                    int before = counters[which];
                    Thread.yield();
                    counters[which] = before + 1;
                    lock.orElseThrow().unlock();
                    done++;
                }
            }));
        }
        for (Future<?> each : counting) each.get();
        threads.shutdown();
        assertEquals(List.of(40, 40), List.of(counters[0], counters[1]));
    }

    @Test
    void anotherThreadUnlocks() throws Exception {
        SimpleLock lock = lock("handed over").orElseThrow();
        CompletableFuture.runAsync(lock::unlock).get();
        assertEquals(Optional.empty(), FencelockLockProvider.current());
        lock("handed over").orElseThrow().unlock();
    }

    @Test
    void theUnlockOfALockThatHasEndedIsQuiet() throws Exception {
        SimpleLock lock = lock("ended").orElseThrow();
        client.breakAny("shedlock/ended");
        SimpleLock next = lock("ended").orElseThrow();
        lock.unlock();
        assertEquals(Optional.empty(), lock("ended"), "the lock of the next is not unlocked");
        next.unlock();
    }

    // AbstractExtensibleLockProviderIntegrationTest

    /** The end of the lock "clock" shows that the first lock would have ended by now without its extension. */
    @Test
    void anExtension() throws Exception {
        SimpleLock lock = lock("extended", SOON, Duration.ZERO).orElseThrow();
        SimpleLock extended = lock.extend(MINUTES, Duration.ZERO).orElseThrow();
        lock("clock", SOON, Duration.ZERO).orElseThrow();
        awaitFree("clock");
        assertTrue(isHeld("extended"));
        assertThrows(IllegalStateException.class, () -> lock.extend(MINUTES, Duration.ZERO), "it can be extended once");
        assertThrows(IllegalStateException.class, lock::unlock, "the extension is to be unlocked");
        extended.unlock();
        assertFalse(isHeld("extended"));
    }

    @Test
    void noExtensionAfterTheEnd() throws Exception {
        SimpleLock unlocked = lock("unlocked").orElseThrow();
        unlocked.unlock();
        assertThrows(IllegalStateException.class, () -> unlocked.extend(MINUTES, Duration.ZERO));
        assertThrows(IllegalStateException.class, unlocked::unlock);
        SimpleLock expired = lock("expired", Duration.ofMillis(1), Duration.ZERO).orElseThrow();
        awaitFree("expired");
        assertEquals(Optional.empty(), expired.extend(MINUTES, Duration.ZERO));
        assertFalse(isHeld("expired"));
        SimpleLock broken = lock("broken").orElseThrow();
        client.breakAny("shedlock/broken");
        assertEquals(Optional.empty(), broken.extend(MINUTES, Duration.ZERO));
    }

    @Test
    void lockAtLeastForOfAnExtension() throws Exception {
        SimpleLock lock = lock("extended at least").orElseThrow();
        long begun = System.nanoTime();
        SimpleLock extended = lock.extend(MINUTES, SHORT).orElseThrow();
        extended.unlock();
        awaitFree("extended at least");
        assertTrue(System.nanoTime() - begun >= SHORT.toNanos(), "it was free too early");
    }
}
