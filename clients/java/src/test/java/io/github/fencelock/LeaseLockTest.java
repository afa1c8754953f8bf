package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotSame;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** A resource as a java.util.concurrent.locks.Lock. CornersTest and ThreadsTest test its interruptions. */
@Timeout(60)
class LeaseLockTest {
    /** The patience gives a call that does not wait enough time on a busy machine. */
    private static final LockOptions OPTIONS = LockOptions.defaults().patience(Duration.ofSeconds(30));

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

    private static <T> T inThread(java.util.concurrent.Callable<T> work) throws Exception {
        FutureTask<T> task = new FutureTask<>(work);
        new Thread(task).start();
        return task.get(30, TimeUnit.SECONDS);
    }

    /** "Only the holder of the lock can release it." */
    @Test
    void anotherThreadDoesNotUnlock() throws Exception {
        LeaseLock lock = client.asLock("a");
        lock.lock();
        inThread(() -> assertThrows(IllegalMonitorStateException.class, lock::unlock));
        inThread(() -> assertThrows(IllegalMonitorStateException.class, lock::lease));
        lock.lease().check();
        lock.unlock();
    }

    /** Another thread asks the service for a lease of its own, as another process does. */
    @Test
    void anotherThreadDoesNotReenter() throws Exception {
        LeaseLock lock = client.asLock("a");
        lock.lock();
        Lease mine = lock.lease();
        inThread(() -> {
            lock.lock(); // the fake service grants everything
            assertNotSame(mine, lock.lease());
            lock.unlock();
            return null;
        });
        assertSame(mine, lock.lease());
        lock.unlock();
        assertEquals(List.of("POST /locks", "POST /locks", "DELETE /leases/current", "DELETE /leases/current"), service.trace());
    }

    /** Two Lock objects of one resource are the same lock. */
    @Test
    void anotherLockOfTheResourceReenters() {
        LeaseLock one = client.asLock("a");
        LeaseLock other = client.asLock("a", OPTIONS.ttl(Duration.ofSeconds(5)));
        one.lock();
        assertTrue(other.tryLock());
        assertSame(one.lease(), other.lease());
        other.unlock();
        one.lease().check();
        one.unlock();
        assertThrows(IllegalMonitorStateException.class, other::lease);
        assertEquals(List.of("POST /locks", "DELETE /leases/current"), service.trace());
    }

    /** Each method waits as java.util.concurrent specifies, whatever wait the options have. */
    @Test
    void theWaitOfTheOptionsDoesNotCount() throws Exception {
        LeaseLock lock = client.asLock("a", OPTIONS.waitAtMost(Duration.ofHours(1)));
        assertTrue(lock.tryLock());
        lock.unlock();
        assertTrue(lock.tryLock(3, TimeUnit.SECONDS));
        lock.unlock();
        lock.lockInterruptibly();
        lock.unlock();
        List<Long> waits = service.calls.stream().filter(call -> call.call().equals("POST /locks")).map(call -> Json.number(call.body(), "wait_ms")).toList();
        assertEquals(0, waits.get(0));
        assertTrue(waits.get(1) > 0 && waits.get(1) <= 3000, waits.toString());
        assertTrue(waits.get(2) > Duration.ofMinutes(9).toMillis(), waits.toString());
    }

    /** After the loss the thread cannot enter the lock again until it has left it, because the lease has ended. */
    @Test
    void aReentryAfterTheLoss() throws Exception {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        LeaseLock lock = client.asLock("a", OPTIONS.ttl(Duration.ofMillis(1500)));
        lock.lock();
        lock.lease().lost().toCompletableFuture().join();
        assertThrows(LeaseLostException.class, lock::lock);
        assertThrows(LeaseLostException.class, lock::tryLock);
        assertThrows(LeaseLostException.class, lock::unlock);
        assertTrue(lock.tryLock(), "it is free again for this thread");
        lock.unlock();
    }

    @Test
    void aServerThatIsDownIsNotAHeldLock() {
        service.refuse.put("POST /locks", new Object[] {503, "no-quorum"});
        LeaseLock lock = client.asLock("a", OPTIONS.patience(Duration.ofMillis(100)));
        assertThrows(UnavailableException.class, lock::tryLock);
        assertThrows(UnavailableException.class, lock::lock);
        service.refuse.put("POST /locks", new Object[] {409, "lock-held"});
        assertFalse(client.asLock("a", OPTIONS).tryLock());
    }
}
