package io.github.fencelock.junit;

import java.io.Closeable;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/** Stands between a test's clients and the server, to lose responses. */
final class LosingProxy implements Closeable {
    private static final int BACKLOG = 1024;

    private final URI server;
    private final ServerSocket listener;
    private final AtomicInteger toLose = new AtomicInteger(); // responses
    private final Set<Socket> open = ConcurrentHashMap.newKeySet();
    private final ExecutorService threads = Executors.newCachedThreadPool(LosingProxy::daemon);

    LosingProxy(String server) {
        this.server = URI.create(server);
        try {
            listener = new ServerSocket(0, BACKLOG, InetAddress.getLoopbackAddress());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        threads.execute(this::accept);
    }

    private static Thread daemon(Runnable work) {
        Thread thread = new Thread(work, "fencelock proxy");
        thread.setDaemon(true);
        return thread;
    }

    String url() {
        return "http://127.0.0.1:" + listener.getLocalPort();
    }

    void loseNext() {
        toLose.incrementAndGet();
    }

    private void accept() {
        try {
            while (true) carry(listener.accept());
        } catch (IOException e) {
            // It was closed.
        }
    }

    /**
     * Carries the bytes of a connection both ways. On a connection a client sends a request only after it has read the response to the last one. So the
     * next bytes of the service after a request that is to lose its response are that response.
     */
    private void carry(Socket client) throws IOException {
        open.add(client);
        Socket service = new Socket(server.getHost(), server.getPort());
        open.add(service);
        if (listener.isClosed()) closeAll();
        AtomicBoolean loses = new AtomicBoolean();
        threads.execute(() -> pump(client, service, (bytes, n) -> {
            if (loses(bytes, n)) loses.set(true);
            return true;
        }));
        threads.execute(() -> pump(service, client, (bytes, n) -> !loses.get()));
    }

    private boolean loses(byte[] request, int length) {
        String begin = new String(request, 0, Math.min(length, 16), StandardCharsets.US_ASCII);
        if (begin.startsWith("GET /healthz") || begin.startsWith("GET /events")) return false; // probes and streams of events, which the client sends by itself
        return toLose.getAndUpdate(n -> Math.max(0, n - 1)) > 0;
    }

    private interface Passes {
        boolean test(byte[] bytes, int length);
    }

    /** Carries bytes until one side ends, or {@code passes} stops them. Then it closes both connections. */
    private void pump(Socket from, Socket to, Passes passes) {
        try (from; to) {
            from.setTcpNoDelay(true);
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            byte[] bytes = new byte[65536];
            for (int n = in.read(bytes); n > 0 && passes.test(bytes, n); n = in.read(bytes)) out.write(bytes, 0, n);
        } catch (IOException e) {
            // One side has ended.
        } finally {
            open.remove(from);
        }
    }

    private void closeAll() throws IOException {
        for (Socket each : open) each.close();
    }

    @Override
    public void close() throws IOException {
        listener.close();
        closeAll();
        threads.shutdown();
        try {
            threads.awaitTermination(10, TimeUnit.SECONDS);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }
}
