package io.github.fencelock;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Timer;
import java.util.TimerTask;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** The conformance kit's driver (clients/conformance/README.md). */
final class Driver {
    private final FencelockClient client;
    private Lease lease;

    private Driver(FencelockClient client) {
        this.client = client;
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Driver driver = null; // until the first set-up
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> order = parse(line);
            if (order.containsKey("servers")) {
                driver = new Driver(client(order));
                say(Map.of("result", "ready"));
            } else {
                say(driver.obey(order));
            }
        }
        System.exit(0); // what was given up may still be under way
    }

    private static FencelockClient client(Map<String, Object> setup) {
        return FencelockClient.builder(Json.text(setup, "servers")).timeout(milliseconds(setup, "timeout_ms")).patience(milliseconds(setup, "patience_ms")).build();
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
        return Json.number(order, "ttl_ms") > 0 ? options.ttl(milliseconds(order, "ttl_ms")) : options;
    }

    private Map<String, Object> obey(Map<String, Object> order) throws InterruptedException {
        try {
            return switch (Json.text(order, "do")) {
                case "acquire" -> acquire(order);
                case "release" -> {
                    lease.release();
                    yield Map.of("result", "released");
                }
                case "work" -> work(order);
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
        } catch (FencelockException e) {
            return failure(e);
        }
    }

    private static Map<String, Object> failure(FencelockException e) {
        return Map.of("result", name(e), "message", e.getMessage());
    }

    /** Takes what it holds again, and another resource with it. */
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

    private Map<String, Object> acquire(Map<String, Object> order) {
        Timer timer = new Timer(true);
        if (Json.number(order, "cancel_after_ms") > 0) timer.schedule(interrupt(Thread.currentThread()), Json.number(order, "cancel_after_ms"));
        try {
            lease = client.acquire(Json.text(order, "resource"), options(order));
        } catch (InterruptedException e) {
            return Map.of("result", "cancelled");
        } finally {
            timer.cancel();
        }
        Map<String, Object> acquired = new LinkedHashMap<>(Map.of("result", "acquired"));
        acquired.put("token", lease.token());
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

    private Map<String, Object> work(Map<String, Object> order) throws InterruptedException {
        client.withLock(Json.text(order, "resource"), options(order), lease -> {
            say(Map.of("event", "began"));
            try {
                lease.lost().toCompletableFuture().get(Json.number(order, "work_ms"), TimeUnit.MILLISECONDS);
                say(Map.of("event", "notified"));
            } catch (TimeoutException e) {
                // The work is done.
            } catch (Exception e) {
                throw new IllegalStateException(e);
            }
            say(Map.of("event", "ended"));
            return null;
        });
        return Map.of("result", "worked");
    }

    private static String name(FencelockException e) {
        if (e instanceof HeldException) return "held";
        if (e instanceof LeaseLostException) return "lost";
        if (e instanceof DeniedException) return "denied";
        return e instanceof UnavailableException ? "unavailable" : "refused";
    }
}
