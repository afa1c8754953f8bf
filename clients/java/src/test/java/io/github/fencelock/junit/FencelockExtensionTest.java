package io.github.fencelock.junit;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.fencelock.FencelockClient;
import io.github.fencelock.Lease;
import io.github.fencelock.LeaseLostException;
import io.github.fencelock.LockOptions;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.ExtendWith;

/** Tests as an application writes them. */
@ExtendWith(FencelockExtension.class)
@Timeout(60)
class FencelockExtensionTest {
    @Test
    void aLostLeaseEndsTheWork(FencelockService service) {
        FencelockClient client = service.client();
        assertThrows(LeaseLostException.class, () -> client.withLock("accounts/1", LockOptions.defaults(), lease -> {
            service.end("accounts/1");
            lease.lost().toCompletableFuture().join();
            return null;
        }));
    }

    @Test
    void anotherProcessHoldsIt(FencelockService service) throws Exception {
        FencelockClient client = service.client();
        CompletableFuture<Long> waiting;
        try (Lease other = service.hold("accounts/2")) {
            assertEquals(Optional.empty(), client.tryLock("accounts/2", LockOptions.defaults()));
            waiting = CompletableFuture.supplyAsync(() -> token(client));
            service.awaitWaiters("accounts/2", 1);
            other.check();
        }
        assertTrue(waiting.get() > 0);
    }

    @Test
    void aLostResponseIsNoLostLease(FencelockService service) throws Exception {
        AtomicInteger retries = new AtomicInteger();
        try (FencelockClient client = FencelockClient.builder(service.url()).onRetry(retry -> retries.incrementAndGet()).build()) {
            service.loseNextResponse();
            try (Lease lease = client.lock("accounts/5")) {
                assertEquals(1, retries.get());
                assertEquals(lease.token(), client.inspect("accounts/5").holder().orElseThrow().token());
            }
        }
    }

    @Test
    void nothingIsHeldAfterATest(FencelockService service) throws Exception {
        FencelockService another = new FencelockService(service.url());
        another.client().acquire("accounts/3", LockOptions.defaults());
        another.client().lock("accounts/4");
        another.close();
        assertTrue(service.client().tryLock("accounts/3").isPresent());
        assertTrue(service.client().tryLock("accounts/4").isPresent());
    }

    private static long token(FencelockClient client) {
        try (Lease lease = client.lock("accounts/2", LockOptions.defaults())) {
            return lease.token();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
