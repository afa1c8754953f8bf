package io.github.fencelock.junit;

import io.github.fencelock.FencelockClient;
import io.github.fencelock.Lease;
import io.github.fencelock.LockOptions;
import io.github.fencelock.LockState;
import io.github.fencelock.RefusedException;
import java.io.IOException;
import java.time.Duration;
import java.util.Queue;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A lock service for a test. */
public final class FencelockService implements ExtensionContext.Store.CloseableResource {
    private final String label = "test " + UUID.randomUUID();
    private final String server;
    private final LosingProxy proxy;
    private final Queue<FencelockClient> clients = new ConcurrentLinkedQueue<>();
    private final FencelockClient others;

    FencelockService(String server) {
        this.server = server;
        this.proxy = new LosingProxy(server);
        this.others = client(server);
    }

    /** {@return the URL of the service, for a program under test} */
    public String url() {
        return proxy.url();
    }

    /**
     * Makes a client, which is closed after the test. The leases that it then holds are ended, including those of acquire, unless their options name
     * another holder.
     *
     * @return a new client
     */
    public FencelockClient client() {
        return client(url());
    }

    private FencelockClient client(String url) {
        FencelockClient client = FencelockClient.builder(url).holder(label).build();
        clients.add(client);
        return client;
    }

    /**
     * Ends whatever lease holds the resource now, as if its time to live had passed. Its holder learns of it from its next extension, at most a third of
     * the TTL later: within half a second, unless the lease has a TTL of its own.
     *
     * @param resource the name of the resource
     * @throws InterruptedException if this thread is interrupted
     */
    public void end(String resource) throws InterruptedException {
        others.breakAny(resource);
    }

    /** Lets the server carry out the next request that comes through {@link #url} or a {@link #client}, but loses the response. */
    public void loseNextResponse() {
        proxy.loseNext();
    }

    /**
     * Acquires the resource for another process, which holds it until the lease is closed.
     *
     * @param resource the name of the resource
     * @return its lease
     * @throws InterruptedException if this thread is interrupted
     */
    public Lease hold(String resource) throws InterruptedException {
        return others.lock(resource, LockOptions.defaults().ttl(Duration.ofMinutes(1)));
    }

    /**
     * Waits until a number of requests wait for the resource.
     *
     * @param resource the name of the resource
     * @param number the number of requests
     * @throws InterruptedException if this thread is interrupted
     */
    public void awaitWaiters(String resource, int number) throws InterruptedException {
        while (others.inspect(resource).waiters() < number) Thread.sleep(Duration.ofMillis(10).toMillis());
    }

    @Override
    public void close() throws InterruptedException, IOException {
        clients.forEach(FencelockClient::close);
        proxy.close();
        try (FencelockClient last = FencelockClient.of(server)) {
            for (LockState lock : last.list("")) if (lock.holder().filter(holder -> holder.label().equals(label)).isPresent()) end(last, lock);
        }
    }

    private static void end(FencelockClient client, LockState lock) throws InterruptedException {
        try {
            client.breakLock(lock.resource(), lock.holder().orElseThrow().token());
        } catch (RefusedException e) {
            // The lease has ended; another test may hold the resource.
        }
    }
}
