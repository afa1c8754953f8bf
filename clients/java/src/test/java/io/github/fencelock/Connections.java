package io.github.fencelock;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** A server that grants every acquire, except that it never responds to those of "held". It notes when connections end. */
final class Connections implements AutoCloseable {
    private static final String LEASE = "{\"lease_id\":\"id\",\"resource\":\"a\",\"fencing_token\":1,\"ttl_ms\":60000,\"validity_ms\":60000,\"waited_ms\":0}";

    /** An element for each acquire of "held" that has arrived. */
    final BlockingQueue<String> held = new LinkedBlockingQueue<>();
    private final BlockingQueue<Socket> begun = new LinkedBlockingQueue<>();
    private final BlockingQueue<Socket> ended = new LinkedBlockingQueue<>();
    private final ServerSocket server = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());

    Connections() throws IOException {
        start(this::accept);
    }

    String url() {
        return "http://127.0.0.1:" + server.getLocalPort();
    }

    /** Waits until the client has closed all its connections. Returns their number. */
    int awaitEnds() throws InterruptedException {
        int all = begun.size();
        for (int n = 0; n < all; n++) {
            if (ended.poll(10, TimeUnit.SECONDS) == null) throw new AssertionError((all - n) + " of " + all + " connections are still open");
        }
        return all;
    }

    @Override
    public void close() throws IOException {
        server.close();
        for (Socket each : begun) each.close();
    }

    private static void start(Runnable run) {
        Thread thread = new Thread(run, "connections");
        thread.setDaemon(true);
        thread.start();
    }

    private void accept() {
        try {
            while (true) {
                Socket socket = server.accept();
                begun.add(socket);
                start(() -> serve(socket));
            }
        } catch (IOException e) {
            // It was closed.
        }
    }

    private void serve(Socket socket) {
        try (socket; BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8))) {
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                String body = body(in);
                if (line.startsWith("POST /locks") && body.contains("held")) {
                    held.add(body);
                } else {
                    String response = line.startsWith("POST /locks") ? "200 OK\r\nContent-Length: " + LEASE.length() + "\r\n\r\n" + LEASE : "204 No Content\r\n\r\n";
                    socket.getOutputStream().write(("HTTP/1.1 " + response).getBytes(StandardCharsets.UTF_8));
                }
            }
        } catch (IOException e) {
            // The client has hung up.
        } finally {
            ended.add(socket);
        }
    }

    /** Reads the rest of a request after its first line. */
    private static String body(BufferedReader in) throws IOException {
        int length = 0;
        for (String line = in.readLine(); line != null && !line.isEmpty(); line = in.readLine()) {
            if (line.toLowerCase().startsWith("content-length:")) length = Integer.parseInt(line.substring(15).strip());
        }
        StringBuilder body = new StringBuilder();
        while (body.length() < length) body.append((char) in.read());
        return body.toString();
    }
}
