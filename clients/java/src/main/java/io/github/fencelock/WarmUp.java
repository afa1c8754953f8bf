package io.github.fencelock;

import java.io.IOException;
import java.io.InputStream;
import java.net.Inet6Address;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;

/**
 * Loads the 500 classes that the first call of a process needs before that call is made, because loading them may take longer than a call that does not
 * wait is allowed. It acquires and releases one lease at a socket of this process. If that fails, the first call loads the classes.
 */
final class WarmUp {
    private static final AtomicBoolean DONE = new AtomicBoolean();
    private static final int PATIENCE = 5000; // milliseconds, for a machine that is very busy
    private static final String LEASE = "{\"lease_id\":\"-\",\"resource\":\"-\",\"fencing_token\":1,\"ttl_ms\":100,\"validity_ms\":100,\"waited_ms\":0}";

    private WarmUp() {}

    static void once() {
        if (DONE.getAndSet(true)) return;
        try (ServerSocket socket = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            socket.setSoTimeout(PATIENCE);
            Thread serving = new Thread(() -> serve(socket), "fencelock start");
            serving.setDaemon(true);
            serving.start();
            String host = socket.getInetAddress() instanceof Inet6Address ? "[::1]" : "127.0.0.1";
            ClientBuilder settings = FencelockClient.builder("http://" + host + ":" + socket.getLocalPort()).timeout(Duration.ofMillis(PATIENCE));
            try (FencelockClient client = new FencelockClient(settings)) {
                client.withLock("-", LockOptions.defaults().waitAtMost(Duration.ofMillis(PATIENCE)), Lease::token);
            }
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        } catch (IOException | RuntimeException e) {
            System.getLogger("io.github.fencelock").log(System.Logger.Level.DEBUG, "the classes of the first call are not loaded yet", e);
        }
    }

    /** Responds to each request of one connection, until the other side closes it. */
    private static void serve(ServerSocket socket) {
        try (Socket connection = socket.accept()) {
            connection.setSoTimeout(PATIENCE);
            InputStream in = connection.getInputStream();
            for (String head = head(in); !head.isEmpty(); head = head(in)) {
                int at = head.indexOf("content-length:");
                if (at >= 0) in.readNBytes(Integer.parseInt(head.substring(at + 15, head.indexOf('\r', at)).strip()));
                String body = head.startsWith("delete") ? "HTTP/1.1 204 No Content\r\n\r\n" : "HTTP/1.1 200 OK\r\nFencelock-Server: -\r\nContent-Length: " + LEASE.length() + "\r\n\r\n" + LEASE;
                connection.getOutputStream().write(body.getBytes(StandardCharsets.US_ASCII));
            }
        } catch (IOException e) {
            // The other side has closed it.
        }
    }

    /** The head of a request in lower case; "" at the end of the connection. */
    private static String head(InputStream in) throws IOException {
        StringBuilder head = new StringBuilder();
        while (head.indexOf("\r\n\r\n") < 0) {
            int next = in.read();
            if (next < 0) return "";
            head.append(Character.toLowerCase((char) next));
        }
        return head.toString();
    }
}
