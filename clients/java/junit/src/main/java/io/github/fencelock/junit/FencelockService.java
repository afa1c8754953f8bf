package io.github.fencelock.junit;

import io.github.fencelock.FencelockClient;
import io.github.fencelock.Lease;
import io.github.fencelock.LockOptions;
import java.time.Duration;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A lock service for a test. */
public final class FencelockService implements ExtensionContext.Store.CloseableResource {
    private final String url;
    private final Queue<FencelockClient> clients = new ConcurrentLinkedQueue<>();
    private final FencelockClient others;

    FencelockService(String url) {
        this.url = url;
        this.others = client();
    }

    /** Its address, for a program that is tested. */
    public String url() {
        return url;
    }

    /** A client, which is closed after the test. */
    public FencelockClient client() {
        FencelockClient client = FencelockClient.of(url);
        clients.add(client);
        return client;
    }

    /**
     * Ends whatever lease holds the resource, now, as if its time to live had passed. Its holder learns it from its next extension, a third of
     * the TTL later at most: without a TTL of its own, within half a second.
     */
    public void end(String resource) throws InterruptedException {
        others.breakAny(resource);
    }

    /** Has another process hold the resource until the lease is closed. */
    public Lease hold(String resource) throws InterruptedException {
        return others.lock(resource, LockOptions.defaults().ttl(Duration.ofMinutes(1)));
    }

    /** Waits until so many requests wait for the resource. */
    public void awaitWaiters(String resource, int number) throws InterruptedException {
        while (others.inspect(resource).waiters() < number) Thread.sleep(Duration.ofMillis(10).toMillis());
    }

    @Override
    public void close() {
        clients.forEach(FencelockClient::close);
    }
}
