package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import net.javacrumbs.shedlock.core.LockConfiguration;
import net.javacrumbs.shedlock.core.LockProvider;
import net.javacrumbs.shedlock.core.SimpleLock;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The LockProvider over a real service, FENCELOCK_URL. */
@Timeout(60)
class ShedLockTest {
    private static LockConfiguration task(String name, Duration atLeast) {
        return new LockConfiguration(Instant.now(), name, Duration.ofMinutes(5), atLeast);
    }

    @Test
    void oneNodeRunsTheTask() throws Exception {
        try (FencelockClient client = FencelockClient.of(System.getenv("FENCELOCK_URL"))) {
            LockProvider nodes = new FencelockLockProvider(client);
            SimpleLock lock = nodes.lock(task("report", Duration.ZERO)).orElseThrow();
            assertTrue(Lease.current().orElseThrow().token() > 0);
            assertEquals(Optional.empty(), CompletableFuture.supplyAsync(() -> nodes.lock(task("report", Duration.ZERO))).get(), "another thread has it");
            lock.unlock();
            nodes.lock(task("report", Duration.ofSeconds(20))).orElseThrow().unlock();
            assertEquals(Optional.empty(), nodes.lock(task("report", Duration.ZERO)), "lockAtLeastFor keeps the task from running again");
            assertTrue(client.inspect("shedlock/report").held());
        }
    }
}
