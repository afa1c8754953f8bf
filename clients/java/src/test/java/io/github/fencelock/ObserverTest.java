package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.micrometer.core.instrument.MeterRegistry;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.net.ServerSocket;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.slf4j.Logger;

/** What a client reports about itself: to its observers, and as its health. */
@Timeout(60)
class ObserverTest {
    private static final LockOptions OPTIONS = LockOptions.defaults();
    private static final Duration SHORT = Duration.ofMillis(1500);
    private static final Duration PATIENT = Duration.ofSeconds(30); // even a busy machine responds in this time

    private static final java.util.logging.Logger LOG = java.util.logging.Logger.getLogger("io.github.fencelock");

    private Service service;
    private FencelockClient client;
    private final BlockingQueue<String> heard = new LinkedBlockingQueue<>();

    /** An observer that notes each report, and then throws. */
    private final class Notes implements LockObserver {
        private void note(String what) {
            heard.add(what);
            throw new IllegalStateException("of the observer");
        }

        @Override
        public void acquiring(String resource) {
            note("acquiring " + resource);
        }

        @Override
        public void granted(Lease lease, Duration waited) {
            note("granted " + lease.parts().get(0).token() + (waited.isNegative() ? " too early" : ""));
        }

        @Override
        public void failed(String resource, Throwable error, Duration waited) {
            note("failed " + resource + " " + error.getClass().getSimpleName());
        }

        @Override
        public void released(Lease lease, Duration held) {
            note("released " + lease.parts().get(0).token() + (held.isNegative() ? " too early" : ""));
        }

        @Override
        public void lost(Lease lease, LeaseLostException loss, Duration held) {
            note("lost " + lease.token());
        }

        @Override
        public void retried(Retry retry) {
            if (retry.error().status() != 503) return; // a busy machine was late; the test did not cause this retry
            service.refuse.clear();
            note("retried " + retry.tries());
        }
    }

    @BeforeEach
    void start() throws IOException {
        LOG.setLevel(Level.OFF); // the client logs the exceptions of observers
        service = new Service();
        client = FencelockClient.builder(service.url()).timeout(PATIENT).observer(new Notes()).build();
    }

    @AfterEach
    void stop() {
        client.close();
        service.close();
        LOG.setLevel(null);
    }

    private void assertHeard(String... wanted) throws InterruptedException {
        for (String each : wanted) assertEquals(each, heard.poll(10, TimeUnit.SECONDS));
        assertEquals(List.of(), List.copyOf(heard));
    }

    @Test
    void aGrantAndItsEnd() throws Exception {
        client.withLock("a", Lease::token);
        assertHeard("acquiring a", "granted 1", "released 1");
        Lease lease = client.acquire(List.of("a", "b"), OPTIONS);
        lease.release();
        lease.close();
        assertHeard("acquiring a, b", "granted 2", "released 2");
    }

    @Test
    void aCallThatGetsNoLease() throws Exception {
        service.refuse.put("POST /locks", new Object[] {409, "lock-held"});
        assertTrue(client.tryLock("a", OPTIONS.patience(PATIENT)).isEmpty());
        assertHeard("acquiring a", "failed a HeldException");
        Thread.currentThread().interrupt();
        assertThrows(InterruptedException.class, () -> client.lock("a"));
        assertHeard("acquiring a", "failed a InterruptedException");
    }

    @Test
    void aLossIsHeardOnce() throws Exception {
        service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
        assertThrows(LeaseLostException.class, () -> client.withLock("a", OPTIONS.ttl(SHORT), lease -> lease.lost().toCompletableFuture().join()));
        assertHeard("acquiring a", "granted 1", "lost 1");
        service.refuse.put("DELETE /leases/current", new Object[] {404, "lease-not-held"});
        Lease lease = client.acquire("b");
        assertThrows(LeaseLostException.class, lease::release);
        assertHeard("acquiring b", "granted 2", "lost 2");
    }

    @Test
    void aCloseIsALoss() throws Exception {
        client.lock("a");
        client.close();
        assertHeard("acquiring a", "granted 1", "lost 1");
    }

    @Test
    void aRetry() throws Exception {
        service.refuse.put("POST /locks", new Object[] {503, "no-quorum"});
        client.lock("a").close();
        assertHeard("acquiring a", "retried 1", "granted 1", "released 1");
    }

    /** Observers are not told of a lease that another process acquired, neither of a grant nor of its end. */
    @Test
    void aLeaseOfAnotherProcess() throws Exception {
        client.lease("secret-id").release();
        assertHeard();
    }

    /** The observer that README.md shows to copy. */
    @Test
    void meters() throws Exception {
        MeterRegistry meters = new MeterRegistry();
        List<String> lines = Collections.synchronizedList(new ArrayList<>());
        Logger logger = (Logger) Proxy.newProxyInstance(Logger.class.getClassLoader(), new Class<?>[] {Logger.class}, (proxy, method, arguments) -> {
            lines.add(method.getName());
            return null;
        });
        try (FencelockClient metered = FencelockClient.builder(service.url()).observer(new LockMetrics(meters, logger)).build()) {
            metered.lock("a").close();
            service.refuse.put("POST /locks", new Object[] {409, "lock-held"});
            metered.tryLock("a", OPTIONS.patience(PATIENT));
            service.refuse.put("POST /locks", new Object[] {503, "no-quorum"});
            assertThrows(UnavailableException.class, () -> metered.lock("a", OPTIONS.patience(Duration.ofSeconds(3))));
            service.refuse.clear();
            service.refuse.put("POST /leases/current/extend", new Object[] {404, "lease-not-held"});
            assertThrows(LeaseLostException.class, () -> metered.withLock("a", OPTIONS.ttl(SHORT), lease -> lease.lost().toCompletableFuture().join()));
        }
        assertTrue(meters.recorded.remove("fencelock.retries[kind, no-quorum]") > 0);
        assertEquals(Map.of("fencelock.wait[result, granted]", 2, "fencelock.wait[result, HeldException]", 1, "fencelock.wait[result, UnavailableException]", 1,
                "fencelock.held[end, released]", 1, "fencelock.held[end, lost]", 1), meters.recorded);
        assertEquals(Set.of("info", "warn"), Set.copyOf(lines));
    }

    @Test
    void health() throws Exception {
        assertEquals(new Health(true, Map.of(service.url(), "")), client.health());
        service.refuse.put("GET /readyz", new Object[] {503, "no-quorum"});
        Health down = client.health();
        assertFalse(down.ready());
        assertTrue(down.servers().get(service.url()).contains("the test says so"), down.toString());
    }

    @Test
    void healthOfSeveralServers() throws Exception {
        String dead;
        try (ServerSocket free = new ServerSocket(0)) {
            dead = "http://127.0.0.1:" + free.getLocalPort();
        }
        try (FencelockClient several = FencelockClient.builder(dead, service.url()).timeout(PATIENT).build()) {
            Health health = several.health();
            assertTrue(health.ready());
            assertEquals("", health.servers().get(service.url()));
            assertTrue(health.servers().get(dead).contains("is the server up?"), health.toString());
        }
        service.hold.put("GET /readyz", true);
        try (FencelockClient one = FencelockClient.builder(service.url()).timeout(Duration.ofMillis(500)).build()) {
            assertEquals(new Health(false, Map.of(service.url(), "no response in time")), one.health());
        }
        client.close();
        assertFalse(client.health().ready());
    }
}
