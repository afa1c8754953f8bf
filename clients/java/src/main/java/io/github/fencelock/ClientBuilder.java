package io.github.fencelock;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.Supplier;
import javax.net.ssl.SSLContext;

/** Settings of a client. */
public final class ClientBuilder {
    final List<String> servers = new ArrayList<>();
    Supplier<String> bearer;
    String holder = "";
    SSLContext tls;
    Duration timeout = Duration.ofSeconds(5);
    Duration patience = Duration.ofSeconds(15);
    Duration poll = Duration.ofSeconds(45);
    final List<LockObserver> observers = new ArrayList<>();

    ClientBuilder(String... servers) {
        for (String each : servers) Collections.addAll(this.servers, each.split(","));
    }

    /**
     * Supplies the caller's credential before each request. White space around it is dropped.
     *
     * @param bearer is called before each request, also by threads of the client
     * @return this
     */
    public ClientBuilder bearer(Supplier<String> bearer) {
        this.bearer = Objects.requireNonNull(bearer);
        return this;
    }

    /**
     * Names a file with the caller's credential, which the client reads before each request.
     *
     * @param file the file
     * @return this
     */
    public ClientBuilder bearerFile(Path file) {
        return bearer(() -> {
            try {
                return Files.readString(file);
            } catch (IOException e) {
                throw new UncheckedIOException(e);
            }
        });
    }

    /**
     * Sets a public label that leases show.
     *
     * @param holder the label, 256 bytes at most
     * @return this
     */
    public ClientBuilder holder(String holder) {
        this.holder = Objects.requireNonNull(holder);
        return this;
    }

    /**
     * Sets the authorities that the client trusts, and its certificate if it has one.
     *
     * @param tls the context
     * @return this
     */
    public ClientBuilder sslContext(SSLContext tls) {
        this.tls = Objects.requireNonNull(tls);
        return this;
    }

    /**
     * Sets the longest time that one try at one server takes, in addition to its wait in the queue; 5 s. A try ends earlier when its
     * response takes much longer than recent responses did; the client then asks the next server.
     *
     * @param timeout above 0
     * @return this
     */
    public ClientBuilder timeout(Duration timeout) {
        this.timeout = timeout;
        return this;
    }

    /**
     * Sets for how long a failing call is repeated, counted from its first failure; 15 s. A call fails while no server responds, or none
     * has a quorum. After this time it throws UnavailableException, but not before it has asked every server once. To wait in the queue is
     * not a failure. An acquire with a wait ends at most a second after its wait. The extends that keep a lease alive are repeated for
     * as long as the lease lives.
     *
     * @param patience 0 or more
     * @return this
     */
    public ClientBuilder patience(Duration patience) {
        this.patience = patience;
        return this;
    }

    /**
     * Sets the longest time that one request waits in the queue; 45 s. A longer wait takes several requests, which keep the
     * place in the queue. Choose less than the time limits of proxies: 60 s in nginx and most load balancers of clouds, 50 s in Debian's
     * HAProxy, 15 s in Envoy.
     *
     * @param poll a second or more; it is rounded down to whole seconds
     * @return this
     */
    public ClientBuilder poll(Duration poll) {
        this.poll = poll;
        return this;
    }

    /**
     * Sets a callback for every try that failed and is repeated. A thread of the client calls it, so it must not block.
     *
     * @param onRetry the callback
     * @return this
     */
    public ClientBuilder onRetry(Consumer<Retry> onRetry) {
        Objects.requireNonNull(onRetry);
        return observer(new LockObserver() {
            @Override
            public void retried(Retry retry) {
                onRetry.accept(retry);
            }
        });
    }

    /**
     * Adds an observer of grants, waits, losses and retries. There may be several.
     *
     * @param observer the observer
     * @return this
     */
    public ClientBuilder observer(LockObserver observer) {
        observers.add(Objects.requireNonNull(observer));
        return this;
    }

    /**
     * Makes the client. The first client of a process takes longer to make: it loads the classes that the first call needs. Throws
     * IllegalArgumentException for a wrong URL or setting.
     *
     * @return the client
     */
    public FencelockClient build() {
        boolean right = timeout.compareTo(Duration.ZERO) > 0 && !patience.isNegative() && poll.compareTo(Duration.ofSeconds(1)) >= 0;
        if (servers.isEmpty() || !right) {
            throw new IllegalArgumentException("a client needs a server, a timeout above 0, a patience of 0 or more, and a poll of a second at least");
        }
        WarmUp.once();
        return new FencelockClient(this);
    }
}
