package io.github.fencelock;

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicInteger;

/** A small lock service in this process, which grants everything unless a test sets something else. */
final class Service implements AutoCloseable {
    record Called(String call, Map<String, Object> body, Map<String, List<String>> headers) {
        String header(String name) {
            return headers.getOrDefault(name, List.of("")).get(0);
        }
    }

    final List<Called> calls = new CopyOnWriteArrayList<>();
    final BlockingQueue<String> arrived = new LinkedBlockingQueue<>();
    /** For a method and path, the status and kind with which the service refuses. */
    final Map<String, Object[]> refuse = new ConcurrentHashMap<>();
    /** For a method and path, fields that are added to the response or replace others. */
    final Map<String, Map<String, Object>> answers = new ConcurrentHashMap<>();
    /** The methods and paths of calls that get no response until the service is closed. */
    final Map<String, Boolean> hold = new ConcurrentHashMap<>();
    /** For a method and path, the milliseconds that the response takes. */
    final Map<String, Integer> takes = new ConcurrentHashMap<>();
    private final CountDownLatch closed = new CountDownLatch(1);
    private final AtomicInteger tokens = new AtomicInteger();
    private final ExecutorService threads = Executors.newCachedThreadPool();
    private final HttpServer server;

    /** Its backlog of connections has room for all callers of a test. Java's default is 50, and a caller that finds no room connects only seconds later. */
    Service() throws IOException {
        server = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 512);
        server.setExecutor(threads);
        server.createContext("/", this::serve);
        server.start();
    }

    String url() {
        return "http://127.0.0.1:" + server.getAddress().getPort();
    }

    List<String> trace() {
        return calls.stream().map(Called::call).toList();
    }

    /** Waits for the next call of this method and path. */
    void await(String call) throws InterruptedException {
        while (!arrived.take().equals(call)) { }
    }

    @Override
    public void close() {
        closed.countDown();
        server.stop(0);
        threads.shutdownNow();
    }

    private void serve(HttpExchange exchange) throws IOException {
        byte[] text = exchange.getRequestBody().readAllBytes();
        String call = exchange.getRequestMethod() + " " + exchange.getRequestURI();
        Map<String, Object> body = Json.object(text).orElse(Map.of());
        boolean holds = hold.containsKey(call); // read before the test learns of the call and may change it
        if (!call.equals("GET /healthz")) {
            Map<String, List<String>> headers = new LinkedHashMap<>();
            exchange.getRequestHeaders().forEach((name, values) -> headers.put(name.toLowerCase(), values));
            calls.add(new Called(call, body, headers));
            arrived.add(call);
        }
        try {
            if (holds) closed.await();
            Thread.sleep(takes.getOrDefault(call, 0));
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
        exchange.getResponseHeaders().set("X-Request-Id", "req-7");
        exchange.getResponseHeaders().set("Fencelock-Server", "one");
        Object[] refusal = refuse.get(call);
        if (refusal != null) {
            answer(exchange, (Integer) refusal[0], Map.of("type", "/problems/" + refusal[1], "title", "No", "status", refusal[0], "detail", "the test says so",
                    "holder", "other", "fencing_token", 7, "remaining_ms", 70));
        } else if (exchange.getRequestMethod().equals("DELETE") || call.equals("POST /cancel") || call.equals("POST /breaks")) {
            answer(exchange, 204, null);
        } else {
            Map<String, Object> lease = lease(call, body);
            lease.putAll(answers.getOrDefault(call, Map.of()));
            answer(exchange, 200, lease);
        }
    }

    private Map<String, Object> lease(String call, Map<String, Object> body) {
        int token = call.equals("POST /locks") ? tokens.incrementAndGet() : tokens.get();
        long ttl = body.containsKey("ttl_ms") ? Json.number(body, "ttl_ms") : 30_000;
        Map<String, Object> lease = new LinkedHashMap<>();
        lease.put("lease_id", "secret-id");
        lease.put("ttl_ms", ttl);
        lease.put("validity_ms", ttl - 5);
        lease.put("waited_ms", 0);
        lease.put("max_hold_remaining_ms", null);
        if (body.get("resources") instanceof List<?> names) {
            List<Object> parts = new ArrayList<>();
            for (Object name : names) parts.add(Map.of("resource", name, "fencing_token", token, "fencing_proof", "secret-proof"));
            lease.put("resources", parts);
        } else {
            boolean slots = body.containsKey("slots");
            lease.put("resource", body.getOrDefault("resource", "r") + (slots ? "#slot1" : ""));
            if (slots) lease.put("slot", 1);
            lease.put("fencing_token", token);
            lease.put("fencing_proof", "secret-proof");
        }
        return lease;
    }

    private static void answer(HttpExchange exchange, int status, Map<String, Object> body) throws IOException {
        byte[] raw = body == null ? new byte[0] : Json.bytes(body);
        exchange.sendResponseHeaders(status, body == null ? -1 : raw.length);
        exchange.getResponseBody().write(raw);
        exchange.close();
    }
}
