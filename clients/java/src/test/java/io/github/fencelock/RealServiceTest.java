package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The client against a real service, FENCELOCK_URL. */
@Timeout(90)
class RealServiceTest {
    private static final LockOptions OPTIONS = LockOptions.defaults().ttl(Duration.ofSeconds(10));
    /** For an acquire that the service refuses. The wait of a second gives a busy machine time to respond. */
    private static final LockOptions SHORT_WAIT = OPTIONS.waitAtMost(Duration.ofSeconds(1));

    private final FencelockClient client = FencelockClient.builder(System.getenv("FENCELOCK_URL")).holder("java").build();
    private final ExecutorService threads = Executors.newCachedThreadPool();

    @AfterEach
    void stop() {
        threads.shutdownNow();
        client.close();
    }

    @Test
    void oneAtATime() throws Exception {
        List<Future<Integer>> workers = new ArrayList<>();
        int[] inside = {0, 0};
        for (int n = 0; n < 8; n++) {
            workers.add(threads.submit(() -> client.<Integer, Exception>withLock("java/one", OPTIONS, lease -> {
                assertEquals(1, ++inside[0]);
                inside[1]++;
                return --inside[0];
            })));
        }
        for (Future<Integer> worker : workers) assertEquals(0, worker.get());
        assertEquals(8, inside[1]);
    }

    @Test
    void slotsAreASemaphore() throws Exception {
        LockOptions slots = OPTIONS.slots(2);
        Set<String> names = new HashSet<>();
        try (Lease one = client.lock("java/jobs", slots); Lease two = client.lock("java/jobs", slots)) {
            names.addAll(List.of(one.resource(), two.resource()));
            assertEquals(Set.of(1, 2), Set.of(one.slot(), two.slot()));
            assertEquals(Optional.empty(), client.tryLock("java/jobs", SHORT_WAIT.slots(2)));
        }
        assertEquals(Set.of("java/jobs#slot1", "java/jobs#slot2"), names);
    }

    @Test
    void whoHoldsIt() throws Exception {
        try (Lease lease = client.lock(List.of("java/a", "java/b"), OPTIONS.metadata(Map.of("job", 7)))) {
            LockState state = client.inspect("java/a");
            LockState.Holder holder = state.holder().orElseThrow();
            assertEquals("java", holder.label());
            assertEquals(lease.parts().get(0).token(), holder.token());
            assertEquals(Optional.of(Map.of("job", 7)), holder.metadata());
            assertEquals(Set.of("java/a", "java/b"), new HashSet<>(client.list("java/").stream().map(LockState::resource).filter(name -> name.length() == 6).toList()));
            HeldException held = assertThrows(HeldException.class, () -> client.acquire("java/b", SHORT_WAIT));
            assertEquals("java", held.holder());
            assertThrows(OtherLeaseException.class, () -> client.breakLock("java/b", 1));
            client.breakLock("java/b", lease.parts().get(1).token());
            assertThrows(LeaseLostException.class, lease::extend);
        } catch (LeaseLostException e) {
            assertTrue(e.getMessage().contains("lost"), e.getMessage());
        }
        assertFalse(client.inspect("java/a").held());
        assertEquals("lock-not-held", assertThrows(RefusedException.class, () -> client.breakLock("java/a", 5)).kind());
    }

    @Test
    void aLeaseOfAnotherProcess() throws Exception {
        try (Lease lease = client.lock("java/handed", OPTIONS)) {
            Lease same = client.lease(lease.id());
            assertEquals(lease.token(), same.token());
            same.extend();
            same.check();
        }
        String gone = client.acquire("java/handed", OPTIONS).id();
        client.breakAny("java/handed");
        assertThrows(LeaseLostException.class, () -> client.lease(gone));
    }

    @Test
    void leadersFollowOneAnother() throws Exception {
        BlockingQueue<String> led = new LinkedBlockingQueue<>();
        CountDownLatch resign = new CountDownLatch(1);
        CountDownLatch seen = new CountDownLatch(1);
        Future<String> first = threads.submit(() -> client.<String, Exception>elect("java/leader", OPTIONS, lease -> {
            led.add("first");
            resign.await();
            return "resigned";
        }));
        assertEquals("first", led.take());
        Future<String> second = threads.submit(() -> client.<String, Exception>elect("java/leader", OPTIONS, lease -> {
            led.add("second");
            seen.await();
            return "led, too";
        }));
        List<Optional<Long>> tokens = new ArrayList<>();
        CountDownLatch watched = new CountDownLatch(1);
        Future<?> watch = threads.submit(() -> {
            client.watch("java/leader", Duration.ofMillis(20), lock -> {
                tokens.add(lock.flatMap(LockState::holder).map(LockState.Holder::token));
                watched.countDown();
                return tokens.stream().flatMap(Optional::stream).distinct().count() < 2;
            });
            return null;
        });
        watched.await();
        resign.countDown();
        assertEquals("resigned", first.get());
        watch.get();
        seen.countDown();
        List<Long> leaders = tokens.stream().flatMap(Optional::stream).toList();
        assertTrue(leaders.get(0) < leaders.get(leaders.size() - 1), "tokens rise: " + leaders);
        assertEquals("second", led.take());
        assertEquals("led, too", second.get());
    }

    @Test
    void records() throws Exception {
        assertEquals(Optional.empty(), client.read("java/record"));
        try (Lease lease = client.lock("java/record", OPTIONS)) {
            assertEquals(new GuardedRecord("java/record", lease.token(), null, 0), client.claim(lease));
            assertEquals(1, client.write(lease, Map.of("paid", true, "sum", List.of(1, 2.5, "x"))).version());
            assertEquals(Map.of("paid", true, "sum", List.of(1, 2.5, "x")), client.read("java/record").orElseThrow().value());
        }
        Lease old = client.acquire("java/record", OPTIONS);
        client.breakAny("java/record");
        try (Lease lease = client.lock("java/record", OPTIONS)) {
            client.claim(lease);
            StaleTokenException stale = assertThrows(StaleTokenException.class, () -> client.write(old, 7));
            assertEquals(List.of(old.token(), lease.token()), List.of(stale.presented(), stale.highest()));
            assertEquals(2, client.delete(lease).version());
            assertEquals(List.of(new GuardedRecord("java/record", lease.token(), null, 2)), client.records("java/rec"));
        }
        List<GuardedRecord.Attempt> attempts = client.history("java/record");
        assertEquals(List.of("write", "write", "claim", "write", "claim"), attempts.stream().map(GuardedRecord.Attempt::kind).toList());
        assertFalse(attempts.get(1).accepted());
    }
}
