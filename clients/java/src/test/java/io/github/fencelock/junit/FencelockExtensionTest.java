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

    private static long token(FencelockClient client) {
        try (Lease lease = client.lock("accounts/2", LockOptions.defaults())) {
            return lease.token();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
