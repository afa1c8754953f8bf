package io.github.fencelock;

import java.net.ConnectException;
import java.net.URI;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.nio.channels.UnresolvedAddressException;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.Future;

/** One of a client's URLs: a server, or a load balancer before several. */
final class Server {
    private static final long PROBE_EVERY = 5 * Clock.SECOND; // while a request waits in the queue; the first comes sooner
    private static final int MAX_NAMES = 16;

    /** The failure of a request that got no response. {@code sent} says whether the server may have seen the request. */
    static final class NoAnswer extends Exception {
        final boolean sent;

        NoAnswer(String why, boolean sent) {
            super(why, null, false, false);
            this.sent = sent;
        }
    }

    /** An answer, and when its request was sent. */
    record Answer(long sent, Map<String, Object> body) {}

    // The connections to a server, 256 in all: for requests that may wait in the queue of the service, for extends, and for other calls.
    private static final int WAITS = 192;
    private static final int EXTENDS = 16;
    private static final int CALLS = 48;

    final String url;
    private final Transport transport;
    private final Lane waits;
    private final Lane extending;
    private final Lane others;
    private final Set<String> names = new HashSet<>(); // of all servers that responded (Fencelock-Server)
    private String name = ""; // of the server that responded last
    private boolean shared; // several servers share this URL

    Server(String url, Transport transport) {
        URI uri;
        try {
            uri = URI.create(url.strip());
        } catch (IllegalArgumentException e) {
            throw new IllegalArgumentException("every server must be a URL such as http://127.0.0.1:8080");
        }
        boolean http = "http".equalsIgnoreCase(uri.getScheme()) || "https".equalsIgnoreCase(uri.getScheme());
        if (!http || uri.getHost() == null || uri.getRawUserInfo() != null || uri.getRawQuery() != null || uri.getRawFragment() != null) {
            throw new IllegalArgumentException("every server must be a URL such as http://127.0.0.1:8080, without a password");
        }
        this.url = uri.toString().replaceAll("/+$", "");
        this.transport = transport;
        waits = new Lane(WAITS, transport);
        extending = new Lane(EXTENDS, transport);
        others = new Lane(CALLS, transport);
    }

    /** The lane in which a call waits for a connection. Extends have a lane of their own, so that a burst of calls does not delay them until a lease is lost. */
    Lane lane(Call call, boolean waiting) {
        if (call.operation().equals("extend")) return extending;
        return waiting ? waits : others;
    }

    /**
     * Sends a call once. It completes {@code asked} with an Answer, with NoAnswer, or with the exception of a refusal. Code that completes {@code asked}
     * before breaks the request off. No thread is interrupted for that, because nobody could tell such an
     * interruption from one that is meant for the caller.
     */
    void ask(CompletableFuture<Answer> asked, Call call, Map<String, String> headers, byte[] body, long limit, long probe) {
        HttpRequest request = request(call, headers, body);
        long sent = Clock.now();
        Future<?> timer = transport.after(limit, () -> asked.completeExceptionally(new NoAnswer("no response in time", true)));
        Probe probing = probe > 0 ? new Probe(asked, probe) : null;
        asked.whenComplete((answer, error) -> {
            timer.cancel(false);
            if (probing != null) probing.stop();
        });
        send(asked, call, request, sent);
    }

    /** Asks whether this server can grant locks. The result is "" if it can, else the reason why not. */
    CompletableFuture<String> ready(long limit) {
        Call call = Call.of("health", "", "GET", "/readyz", Map.of());
        CompletableFuture<Answer> asked = new CompletableFuture<>();
        Future<?> late = transport.after(limit, () -> asked.completeExceptionally(new NoAnswer("no response in time", true)));
        others.take(() -> {
            asked.whenComplete((answer, error) -> others.give());
            if (!asked.isDone()) ask(asked, call, Map.of(), null, limit, 0);
        });
        return asked.handle((answer, error) -> {
            late.cancel(false);
            return error == null ? "" : error.getMessage();
        });
    }

    private void send(CompletableFuture<Answer> asked, Call call, HttpRequest request, long sent) {
        CompletableFuture<Transport.Response> response = transport.send(request);
        asked.whenComplete((answer, error) -> response.cancel(true)); // has no effect after the response has come
        response.whenComplete((answer, error) -> {
            if (error != null) asked.completeExceptionally(failure(call, error));
            else judged(call, sent, answer, asked);
        });
    }

    private HttpRequest request(Call call, Map<String, String> headers, byte[] body) {
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(url + call.path()));
        headers.forEach(request::setHeader);
        return request.method(call.method(), body == null ? BodyPublishers.noBody() : BodyPublishers.ofByteArray(body)).build();
    }

    private static Exception failure(Call call, Throwable error) {
        Throwable cause = error instanceof CompletionException && error.getCause() != null ? error.getCause() : error;
        if (cause.getCause() instanceof Transport.TooLong) cause = cause.getCause(); // the HTTP client wraps it for a thread that waits
        if (cause instanceof Transport.TooLong) return Errors.foreign(call, "an answer that is too long");
        boolean unsent = cause instanceof ConnectException || cause instanceof UnresolvedAddressException;
        return new NoAnswer(why(cause), !unsent);
    }

    private static String why(Throwable error) {
        if (error.getMessage() != null) return error.getMessage();
        if (error.getCause() instanceof UnresolvedAddressException) return "the host is not known";
        return error instanceof ConnectException ? "no connection: is the server up?" : error.getClass().getSimpleName();
    }

    private void judged(Call call, long sent, Transport.Response response, CompletableFuture<Answer> asked) {
        HttpHeaders headers = response.headers();
        headers.firstValue("Fencelock-Server").ifPresent(this::answered);
        try {
            asked.complete(new Answer(sent, judge(call, response)));
        } catch (FencelockException e) {
            asked.completeExceptionally(e.from(url, headers.firstValue("X-Request-Id").orElse("")));
        }
    }

    private static Map<String, Object> judge(Call call, Transport.Response response) {
        int status = response.status();
        if (status >= 300 && status < 400) throw Errors.redirected(call, status, target(response.headers()));
        Optional<Map<String, Object>> body = Json.object(response.body());
        if (status < 200 || status >= 300) {
            throw Errors.refusal(call, status, body.orElse(Map.of()), response.headers().firstValue("Retry-After"));
        }
        if (status == 204) return Map.of();
        return body.orElseThrow(() -> Errors.foreign(call, "the answer"));
    }

    /** The scheme, host and port of a redirect. Its path may contain a lease id, a secret. */
    private static String target(HttpHeaders headers) {
        try {
            URI location = URI.create(headers.firstValue("Location").orElse(""));
            return location.getHost() == null ? "another path" : location.getScheme() + "://" + location.getHost() + (location.getPort() < 0 ? "" : ":" + location.getPort());
        } catch (IllegalArgumentException e) {
            return "another path";
        }
    }

    /** Notes which server responded. If a name comes back after another one, several servers share this URL. If the name only changes, the server was restarted. */
    private synchronized void answered(String by) {
        if (by.equals(name)) return;
        if (names.contains(by)) shared = true;
        if (names.size() >= MAX_NAMES) names.clear();
        names.add(by);
        name = by;
    }

    private synchronized boolean isShared() {
        return shared;
    }

    /**
     * Asks from time to time whether the server responds at all, while a request waits in its queue: a frozen server would keep the request until
     * the end of its wait. Behind a load balancer the probe may reach another server, so its failure counts for nothing.
     */
    private final class Probe {
        private final CompletableFuture<Answer> waiting;
        private final long limit;
        private volatile Future<?> next;
        private volatile CompletableFuture<Answer> asking;

        Probe(CompletableFuture<Answer> waiting, long limit) {
            this.waiting = waiting;
            this.limit = limit;
            next = transport.after(limit, this::run);
        }

        private void run() {
            next = transport.after(PROBE_EVERY, this::run);
            others.take(this::ask);
        }

        private void ask() {
            if (waiting.isDone()) {
                others.give();
                return;
            }
            CompletableFuture<Answer> probed = new CompletableFuture<>();
            asking = probed;
            probed.whenComplete((answer, error) -> others.give());
            Server.this.ask(probed, Call.of("probe", "", "GET", "/healthz", Map.of()), Map.of(), null, limit, 0);
            probed.whenComplete((answer, error) -> { // any response shows that the server is alive, also a refusal
                if (error instanceof NoAnswer && !isShared()) waiting.completeExceptionally(new NoAnswer("the server does not answer while the request waits", true));
            });
            if (waiting.isDone()) stop();
        }

        void stop() {
            next.cancel(false);
            CompletableFuture<Answer> last = asking;
            if (last != null) last.cancel(false);
        }
    }
}
