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
     * A file with the caller's credential, which is read before each request.
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
     * A public label that leases show.
     *
     * @param holder the label, 256 bytes at most
     * @return this
     */
    public ClientBuilder holder(String holder) {
        this.holder = Objects.requireNonNull(holder);
        return this;
    }

    /**
     * Which authorities are trusted, and the certificate of a client that has one.
     *
     * @param tls the context
     * @return this
     */
    public ClientBuilder sslContext(SSLContext tls) {
        this.tls = Objects.requireNonNull(tls);
        return this;
    }

    /**
     * The most that one try at one server takes, beyond what it waits in the queue; 5 s. A try ends earlier when its
     * answer is overdue by what answers have taken: the next server is asked then.
     *
     * @param timeout above 0
     * @return this
     */
    public ClientBuilder timeout(Duration timeout) {
        this.timeout = timeout;
        return this;
    }

    /**
     * For how long a call is repeated that fails, from its first failure: that no server responds, or none has a quorum; 15 s.
     * Then it throws UnavailableException. Every server is asked at least once; a wait in the queue is no failure. An acquire with a
     * wait ends a second after it at most, and a lease that is kept alive is extended for as long as it lives.
     *
     * @param patience 0 or more
     * @return this
     */
    public ClientBuilder patience(Duration patience) {
        this.patience = patience;
        return this;
    }

    /**
     * How long one request waits in the queue at the longest; 45 s. A longer wait is several requests, which keep the
     * place. Whole seconds, less than the time limits of proxies: 60 in nginx and most load balancers of clouds, 50 in Debian's HAProxy, 15 in Envoy.
     *
     * @param poll a second or more
     * @return this
     */
    public ClientBuilder poll(Duration poll) {
        this.poll = poll;
        return this;
    }

    /**
     * Called for every try that failed and is repeated, on a thread of the client: it must not block.
     *
     * @param onRetry what is called
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
     * Hears grants, waits, losses and retries. There may be several.
     *
     * @param observer the observer
     * @return this
     */
    public ClientBuilder observer(LockObserver observer) {
        observers.add(Objects.requireNonNull(observer));
        return this;
    }

    /**
     * Makes the client. The first of a process takes longer: it loads what the first call would have to.
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
