package io.github.fencelock;

import java.io.IOException;
import java.net.http.HttpClient;
import java.net.http.HttpHeaders;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodySubscriber;
import java.nio.ByteBuffer;
import java.security.GeneralSecurityException;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionStage;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.Flow;
import java.util.concurrent.Future;
import java.util.concurrent.FutureTask;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import javax.net.ssl.SSLContext;

/**
 * The threads and connections of a client: one thread for timers, and up to four that never wait for a response, however many
 * leases are kept alive. Threads end when they are idle for five seconds.
 */
final class Transport implements Executor {
    private static final int MAX_BODY = 16 << 20; // bytes
    private static final int THREADS = 4;
    private static final int IDLE = 5; // seconds after which a thread without work ends

    /** A body that is longer than any response of the service. */
    static final class TooLong extends IOException {}

    private final ScheduledThreadPoolExecutor timers;
    private final ThreadPoolExecutor pool;
    private final ThreadGroup group = new ThreadGroup("fencelock");
    private final ThreadLocal<Boolean> sendsHere = new ThreadLocal<>(); // set while a thread hands a request to the HTTP client
    private volatile HttpClient http;

    Transport(SSLContext tls) {
        timers = new ScheduledThreadPoolExecutor(1, threads("timers"), new ThreadPoolExecutor.DiscardPolicy());
        timers.setRemoveOnCancelPolicy(true);
        timers.setKeepAliveTime(IDLE, TimeUnit.SECONDS);
        timers.allowCoreThreadTimeOut(true);
        pool = new ThreadPoolExecutor(THREADS, THREADS, IDLE, TimeUnit.SECONDS, new LinkedBlockingQueue<>(), threads("pool"));
        pool.allowCoreThreadTimeOut(true);
        HttpClient.Builder builder = HttpClient.newBuilder().followRedirects(HttpClient.Redirect.NEVER).executor(this::soon).sslContext(tls);
        // For HTTP/2 the client would send an Upgrade header; and a single connection for all requests could hang.
        http = inGroup(builder.version(HttpClient.Version.HTTP_1_1));
    }

    /** Builds the HTTP client in a thread of the group. The HTTP client's own thread inherits the group, where close finds it. */
    private HttpClient inGroup(HttpClient.Builder builder) {
        FutureTask<HttpClient> building = new FutureTask<>(builder::build);
        new Thread(group, building, "fencelock start").start();
        boolean interrupted = false;
        while (true) {
            try {
                HttpClient built = building.get();
                if (interrupted) Thread.currentThread().interrupt();
                return built;
            } catch (InterruptedException e) {
                interrupted = true;
            } catch (ExecutionException e) {
                throw new IllegalStateException("the HTTP client does not start", e.getCause());
            }
        }
    }

    /** A context with the default authorities. It has none if no server has an https URL, because reading them takes longer than the rest of a client's start. */
    static SSLContext tls(List<String> servers) {
        try {
            if (servers.stream().anyMatch(url -> url.strip().toLowerCase(Locale.ROOT).startsWith("https:"))) return SSLContext.getDefault();
            return NoTls.context();
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException("this Java has no TLS", e);
        }
    }

    private static ThreadFactory threads(String of) {
        AtomicInteger number = new AtomicInteger();
        return task -> {
            Thread thread = new PoolThread(task, "fencelock " + of + " " + number.incrementAndGet());
            thread.setDaemon(true);
            return thread;
        };
    }

    /** A response with its whole body. */
    record Response(int status, HttpHeaders headers, byte[] body) {}

    /**
     * Sends a request. To cancel the future that it returns breaks the request off and closes its connection. The future completes with the last byte;
     * the HTTP client's own future would complete later, after a change of threads.
     */
    CompletableFuture<Response> send(HttpRequest request) {
        HttpClient client = http;
        if (client == null) return CompletableFuture.failedFuture(new ClosedException());
        CompletableFuture<Response> whole = new CompletableFuture<>();
        sendsHere.set(true);
        CompletableFuture<?> sent;
        try {
            sent = client.sendAsync(request, head -> {
                Bounded body = new Bounded();
                body.getBody().thenAccept(bytes -> whole.complete(new Response(head.statusCode(), head.headers(), bytes)));
                return body;
            });
        } finally {
            sendsHere.remove();
        }
        sent.whenComplete((response, error) -> {
            if (error != null) whole.completeExceptionally(error);
        });
        whole.whenComplete((response, error) -> {
            if (error != null) sent.cancel(true);
        });
        return whole;
    }

    /** Runs a task of the HTTP client: directly in a thread of the pool or one that sends, because to hand the task on would take longer than the rest; else in the pool. */
    private void soon(Runnable task) {
        if (sendsHere.get() != null || Thread.currentThread() instanceof PoolThread) task.run();
        else pool.execute(task);
    }

    private static final class PoolThread extends Thread {
        PoolThread(Runnable task, String name) {
            super(task, name);
        }
    }

    @Override
    public void execute(Runnable task) {
        pool.execute(task);
    }

    /** Runs a task on the pool after so many nanoseconds. If the system has no thread for the pool, the thread for timers runs it. */
    Future<?> after(long nanos, Runnable task) {
        return timers.schedule(() -> {
            try {
                execute(task);
            } catch (OutOfMemoryError e) {
                task.run();
            }
        }, nanos, TimeUnit.NANOSECONDS);
    }

    /**
     * Ends the connections. Before Java 21 an HTTP client has no method for that, but it ends when its thread is interrupted. It would not always end by
     * itself, because it counts a request from an interrupted thread as under way for ever. The pool is not shut down, because it still notes the ends of
     * requests; its threads end when they have nothing to do.
     */
    void close() {
        HttpClient client = http;
        http = null;
        timers.shutdownNow();
        pool.setKeepAliveTime(1, TimeUnit.MILLISECONDS);
        if (client == null) return;
        try {
            HttpClient.class.getMethod("shutdownNow").invoke(client);
        } catch (ReflectiveOperationException e) {
            group.interrupt();
        }
    }

    /** Reads a body, and fails if it is longer than any response of the service. */
    private static final class Bounded implements BodySubscriber<byte[]> {
        private final BodySubscriber<byte[]> all = HttpResponse.BodySubscribers.ofByteArray();
        private Flow.Subscription subscription;
        private long size;

        @Override
        public CompletionStage<byte[]> getBody() {
            return all.getBody();
        }

        @Override
        public void onSubscribe(Flow.Subscription subscription) {
            this.subscription = subscription;
            all.onSubscribe(subscription);
        }

        @Override
        public void onNext(List<ByteBuffer> buffers) {
            for (ByteBuffer buffer : buffers) size += buffer.remaining();
            if (size <= MAX_BODY) {
                all.onNext(buffers);
                return;
            }
            subscription.cancel();
            all.onError(new TooLong());
        }

        @Override
        public void onError(Throwable error) {
            all.onError(error);
        }

        @Override
        public void onComplete() {
            all.onComplete();
        }
    }
}
