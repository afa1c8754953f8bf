package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** The queue of requests that wait for a connection to a server. */
@Timeout(60)
class LaneTest {
    private final Queue<Runnable> pool = new ArrayDeque<>(); // the tasks that the pool was given
    private final List<String> ran = new ArrayList<>();

    @Test
    void aFreeTurnIsTakenAtOnceByTheCaller() {
        Lane lane = new Lane(2, pool::add);
        lane.take(() -> ran.add("a"));
        lane.take(() -> ran.add("b"));
        assertEquals(List.of("a", "b"), ran);
        assertEquals(0, pool.size());
        assertFalse(lane.isCrowded());
    }

    @Test
    void theOthersQueueInTheirOrder() {
        Lane lane = new Lane(1, pool::add);
        for (String name : List.of("a", "b", "c")) lane.take(() -> ran.add(name));
        assertEquals(List.of("a"), ran);
        assertTrue(lane.isCrowded());
        for (int n = 0; n < 2; n++) {
            lane.give();
            assertEquals(1, pool.size(), "the next runs on the pool, and not in whoever ends a turn");
            pool.remove().run();
        }
        assertEquals(List.of("a", "b", "c"), ran);
        assertFalse(lane.isCrowded());
    }

    /** A turn that ends while no request waits is free for exactly one later request. */
    @Test
    void anEndedTurnIsFreeOnce() {
        Lane lane = new Lane(1, pool::add);
        lane.take(() -> ran.add("a"));
        lane.give();
        lane.take(() -> ran.add("b"));
        lane.take(() -> ran.add("c"));
        assertEquals(List.of("a", "b"), ran);
        assertTrue(lane.isCrowded());
    }

    @Test
    void itNeverLetsMoreThrough() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(8);
        Lane lane = new Lane(3, threads);
        AtomicInteger inside = new AtomicInteger();
        AtomicInteger most = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(2000);
        for (int n = 0; n < 2000; n++) {
            threads.execute(() -> lane.take(() -> {
                most.accumulateAndGet(inside.incrementAndGet(), Math::max);
                Thread.yield();
                inside.decrementAndGet();
                lane.give();
                done.countDown();
            }));
        }
        assertTrue(done.await(30, TimeUnit.SECONDS), done.getCount() + " had no turn");
        threads.shutdown();
        assertTrue(most.get() <= 3, most + " at once");
        lane.take(() -> ran.add("free"));
        assertEquals(List.of("free"), ran);
    }

    /** Calls that use all other connections do not delay an extend, which has connections of its own. */
    @Test
    void anExtendPassesABurst() throws Exception {
        Transport transport = new Transport(Transport.tls(List.of()));
        try {
            Server server = new Server("http://127.0.0.1:1", transport);
            Call extend = Call.of("extend", "a", "POST", "/leases/current/extend", java.util.Map.of());
            Call acquire = Call.of("acquire", "a", "POST", "/locks", java.util.Map.of());
            for (int n = 0; n < 1000; n++) {
                server.lane(acquire, true).take(() -> {});
                server.lane(acquire, false).take(() -> {});
            }
            assertTrue(server.lane(acquire, true).isCrowded() && server.lane(acquire, false).isCrowded());
            server.lane(extend, false).take(() -> ran.add("extend"));
            assertEquals(List.of("extend"), ran);
        } finally {
            transport.close();
        }
    }

    /** A call whose time is over before it gets its turn throws UnavailableException, and its turn is still there for other calls. */
    @Test
    void aCallThatGivesUpInTheQueue() throws Exception {
        try (Service service = new Service(); FencelockClient client = FencelockClient.of(service.url())) {
            service.hold.put("POST /locks", true);
            LockOptions options = LockOptions.defaults().waitAtMost(java.time.Duration.ZERO);
            ExecutorService threads = Executors.newCachedThreadPool();
            AtomicInteger unavailable = new AtomicInteger();
            CountDownLatch done = new CountDownLatch(60);
            for (int n = 0; n < 60; n++) {
                threads.execute(() -> {
                    try {
                        client.acquire("a", options);
                    } catch (UnavailableException e) {
                        unavailable.incrementAndGet();
                    } catch (InterruptedException e) {
                        Thread.currentThread().interrupt();
                    }
                    done.countDown();
                });
            }
            assertTrue(done.await(50, TimeUnit.SECONDS));
            assertEquals(60, unavailable.get());
            service.hold.clear();
            client.lock("b").close();
            threads.shutdown();
        } catch (IOException e) {
            throw new AssertionError(e);
        }
    }
}
