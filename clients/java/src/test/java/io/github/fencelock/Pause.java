package io.github.fencelock;

import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.Callable;

/**
 * A proxy to MariaDB for one connection. It holds back the client's n-th packet, counted from the one that limits the idle time, as if the holder were
 * paused there.
 */
final class Pause implements AutoCloseable {
    private final ServerSocket listener = new ServerSocket(0, 1, InetAddress.getLoopbackAddress());
    private final Thread thread;
    private final Callable<?> meanwhile;
    private int left;
    private boolean begun;
    private String packet;
    private Exception error;

    /** {@code meanwhile} runs during the pause. */
    Pause(String host, int port, int n, Callable<?> meanwhile) throws IOException {
        this.left = n;
        this.meanwhile = meanwhile;
        thread = new Thread(() -> {
            try (Socket holder = listener.accept(); Socket server = new Socket(host, port)) {
                Thread back = new Thread(() -> carry(server, holder, false));
                back.start();
                carry(holder, server, true);
                back.join();
            } catch (IOException | InterruptedException e) {
                // No client has connected.
            }
        });
        thread.start();
    }

    int port() {
        return listener.getLocalPort();
    }

    /** Closes the proxy, and returns the packet that it held back; null if there were fewer packets. */
    String packet() throws Exception {
        close();
        if (error != null) throw new AssertionError("before " + packet, error);
        return packet;
    }

    @Override
    public void close() throws IOException {
        listener.close();
        try {
            thread.join();
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void carry(Socket from, Socket to, boolean pausing) {
        byte[] buffer = new byte[1 << 16];
        try {
            InputStream in = from.getInputStream();
            OutputStream out = to.getOutputStream();
            for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
                if (pausing) before(new String(buffer, 0, n, StandardCharsets.ISO_8859_1));
                out.write(buffer, 0, n);
            }
            to.shutdownOutput();
        } catch (IOException e) {
            // The other side has closed the connection.
        }
    }

    private void before(String sent) {
        begun |= sent.contains("SESSION idle_transaction_timeout");
        if (!begun || --left != 0) return;
        packet = sent;
        try {
            meanwhile.call();
        } catch (Exception e) {
            error = e;
        }
    }
}
