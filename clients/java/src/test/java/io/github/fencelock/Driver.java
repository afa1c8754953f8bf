package io.github.fencelock;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.logging.Level;
import java.util.logging.Logger;

/** The conformance kit's driver (clients/conformance/README.md). */
final class Driver {
    private static final Logger LOG = Logger.getLogger("io.github.fencelock"); // what callbacks raise is logged

    /** The exception that a callback of the set-up raises. */
    private static final class Raised extends RuntimeException {
        Raised(String callback) {
            super("an exception of " + callback);
        }
    }

    private final FencelockClient client;
    private final Runnable onLost; // the set-up's callback on_lost
    private Lease lease; // the lease of the last acquire; null if it failed

    private Driver(Map<String, Object> setup) {
        ClientBuilder settings = FencelockClient.builder(Json.text(setup, "servers")).timeout(milliseconds(setup, "timeout_ms")).patience(milliseconds(setup, "patience_ms"));
        broken(setup, "credential").ifPresent(raise -> settings.bearer(() -> {
            raise.run();
            return "a-credential";
        }));
        broken(setup, "on_retry").ifPresent(raise -> settings.onRetry(retry -> raise.run()));
        onLost = broken(setup, "on_lost").orElse(() -> {});
        client = settings.build();
    }

    /** A callback whose calls raise as the set-up says; empty if the set-up has nothing for this callback. */
    private static Optional<Runnable> broken(Map<String, Object> setup, String callback) {
        return Json.objects(setup, "raises").stream().filter(each -> Json.text(each, "callback").equals(callback)).findFirst().map(raise -> {
            AtomicLong calls = new AtomicLong();
            long from = Json.number(raise, "from");
            long times = Json.number(raise, "times");
            return () -> {
                long call = calls.incrementAndGet();
                if (call >= from && (times == 0 || call < from + times)) throw new Raised(callback);
            };
        });
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        LOG.setLevel(Level.OFF);
        Driver driver = null; // until the first set-up
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> order = parse(line);
            if (order.containsKey("servers")) {
                driver = new Driver(order);
                say(Map.of("result", "ready"));
            } else {
                say(driver.obey(order));
            }
        }
        System.exit(0); // requests that were given up may still be under way
    }

    private static Map<String, Object> parse(String line) {
        return Json.object(line.getBytes(StandardCharsets.UTF_8)).orElseThrow();
    }

    private static synchronized void say(Map<String, Object> line) {
        System.out.println(new String(Json.bytes(line), StandardCharsets.UTF_8));
    }

    private static Duration milliseconds(Map<String, Object> of, String name) {
        return Duration.ofMillis(Json.number(of, name));
    }

    private static LockOptions options(Map<String, Object> order) {
        LockOptions options = LockOptions.defaults().waitAtMost(milliseconds(order, "wait_ms"));
        if (Json.number(order, "ttl_ms") != 0) options = options.ttl(milliseconds(order, "ttl_ms"));
        if (order.containsKey("patience_ms")) options = options.patience(milliseconds(order, "patience_ms"));
        if (order.containsKey("min_hold_ms")) options = options.minHold(milliseconds(order, "min_hold_ms"));
        if (order.containsKey("max_hold_ms")) options = options.maxHold(milliseconds(order, "max_hold_ms"));
        if (order.containsKey("margin_ms")) options = options.margin(milliseconds(order, "margin_ms"));
        if (order.containsKey("slots")) options = options.slots((int) Json.number(order, "slots"));
        return order.containsKey("holder") ? options.holder(Json.text(order, "holder")) : options;
    }

    private static List<String> resources(Map<String, Object> order) {
        if (!(order.get("resources") instanceof List<?> names)) return List.of(Json.text(order, "resource"));
        return names.stream().map(String::valueOf).toList();
    }

    private Map<String, Object> obey(Map<String, Object> order) throws Exception {
        Timer timer = new Timer(true);
        try {
            long after = Json.number(order, "cancel_after_ms");
            long again = Json.number(order, "cancel_again_ms");
            if (after > 0) timer.schedule(interrupt(Thread.currentThread()), after);
            if (again > 0) timer.schedule(interrupt(Thread.currentThread()), after + again);
            return obeyed(order);
        } catch (InterruptedException e) {
            return Map.of("result", "cancelled");
        } catch (FencelockException | IllegalArgumentException | Raised e) {
            return failure(e);
        } finally {
            timer.cancel();
            Thread.interrupted(); // clears a second interruption of this order, which must not reach the next
        }
    }

    private Map<String, Object> obeyed(Map<String, Object> order) throws Exception {
        if (order.containsKey("deadline_ms")) return Map.of("result", "unsupported"); // in Java only the wait bounds a call
        return switch (Json.text(order, "do")) {
            case "acquire" -> acquire(order);
            case "release" -> release();
            case "work" -> work(order);
            case "elect" -> Map.of("result", client.<String, Exception>elect(Json.text(order, "resource"), options(order), lease -> {
                term(lease, order);
                return "resigned";
            }));
            case "burst" -> burst(order);
            case "inside" -> inside(order);
            case "close" -> {
                client.close();
                yield Map.of("result", "closed");
            }
            case "pause" -> {
                Thread.sleep(Json.number(order, "work_ms"));
                yield Map.of("result", "paused");
            }
            default -> Map.of("result", "unsupported"); // a JVM does not fork, and a thread inherits nothing of the work that started it
        };
    }

    private static Map<String, Object> failure(RuntimeException e) {
        return Map.of("result", name(e), "message", String.valueOf(e.getMessage()));
    }

    private Map<String, Object> release() throws InterruptedException {
        if (lease == null) return Map.of("result", "none");
        lease.release();
        return Map.of("result", "released");
    }

    /** Inside the work of a resource, acquires the same resource together with another one. */
    private Map<String, Object> inside(Map<String, Object> order) throws InterruptedException {
        String resource = Json.text(order, "resource");
        LockOptions options = LockOptions.defaults();
        return client.<Map<String, Object>, InterruptedException>withLock(resource, options.ttl(milliseconds(order, "ttl_ms")), outer -> {
            try {
                Lease inner = client.acquire(List.of(resource, "another"), options.waitAtMost(milliseconds(order, "wait_ms")));
                return Map.of("result", "acquired", "token", inner.parts().get(0).token());
            } catch (FencelockException e) {
                return failure(e);
            }
        });
    }

    private Map<String, Object> acquire(Map<String, Object> order) throws InterruptedException {
        lease = null;
        lease = client.acquire(resources(order), options(order));
        Map<String, Object> acquired = new LinkedHashMap<>(Map.of("result", "acquired"));
        acquired.put("token", lease.parts().get(0).token());
        acquired.put("validity_ms", lease.validity().toMillis());
        return acquired;
    }

    private static TimerTask interrupt(Thread thread) {
        return new TimerTask() {
            @Override
            public void run() {
                thread.interrupt();
            }
        };
    }

    private Map<String, Object> work(Map<String, Object> order) throws Exception {
        long closeAfter = Json.number(order, "close_after_ms");
        Thread closing = new Thread(() -> {
            sleep(closeAfter);
            client.close();
        });
        if (closeAfter > 0) closing.start();
        try {
            client.<Void, Exception>withLock(resources(order), options(order), lease -> {
                term(lease, order);
                return null;
            });
        } finally {
            closing.join(); // returns at once if the thread was not started
        }
        return Map.of("result", "worked");
    }

    /** Works for as long as the order says, or until the lease is lost. */
    private void term(Lease lease, Map<String, Object> order) throws Exception {
        say(Map.of("event", "began"));
        if (Boolean.TRUE.equals(order.get("on_lost"))) {
            lease.lost().thenAccept(loss -> {
                say(Map.of("event", "on_lost"));
                onLost.run();
            });
        }
        try {
            if (order.containsKey("busy_ms")) {
                Thread.sleep(Json.number(order, "busy_ms"));
                if (lease.isLost()) say(Map.of("event", "notified"));
            } else {
                lease.lost().toCompletableFuture().get(Json.number(order, "work_ms"), TimeUnit.MILLISECONDS);
                say(Map.of("event", "notified"));
            }
        } catch (TimeoutException e) {
            // The work has ended without a loss.
        } finally {
            say(Map.of("event", "ended"));
        }
    }

    private Map<String, Object> burst(Map<String, Object> order) throws Exception {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Json.number(order, "work_ms"));
        int calls = (int) Json.number(order, "calls");
        LockOptions options = options(order);
        List<Lease> kept = new ArrayList<>();
        for (int i = 0; i < Json.number(order, "keep"); i++) {
            kept.add(client.lock(Json.text(order, "resource") + "/kept/" + i, LockOptions.defaults().ttl(milliseconds(order, "ttl_ms")).waitAtMost(Duration.ZERO)));
        }
        AtomicLong done = new AtomicLong();
        CountDownLatch ready = new CountDownLatch(calls);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < calls; i++) {
            String resource = Json.text(order, "resource") + "/" + i;
            threads.add(new Thread(() -> {
                try {
                    ready.countDown();
                    ready.await();
                    client.acquire(resource, options).release();
                    done.incrementAndGet();
                } catch (InterruptedException | FencelockException e) {
                    say(Map.of("event", "failed", "message", String.valueOf(e.getMessage())));
                }
            }));
        }
        for (Thread each : threads) each.start();
        for (Thread each : threads) each.join();
        sleep(TimeUnit.NANOSECONDS.toMillis(Math.max(0, end - System.nanoTime())));
        long live = kept.stream().filter(each -> !each.isLost()).count();
        for (Lease each : kept) each.close();
        return Map.of("result", "burst", "done", done.get(), "kept", live);
    }

    private static void sleep(long milliseconds) {
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private static String name(RuntimeException e) {
        for (Throwable cause = e; cause != null; cause = cause.getCause()) if (cause instanceof Raised) return "raised";
        if (e instanceof HeldException) return "held";
        if (e instanceof LeaseLostException) return "lost";
        if (e instanceof DeniedException) return "denied";
        return e instanceof UnavailableException ? "unavailable" : "refused";
    }
}
