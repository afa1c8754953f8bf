package io.github.fencelock;

import java.io.IOException;
import java.nio.channels.SocketChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;

/** A worker of the fault run (clients/faults): Faults SERVERS DEPOSITS TTL */
final class Faults {
    private static final int ACCOUNTS = 5;
    private static final long STEP = 10; // milliseconds between two looks at the lease

    private static final Map<String, Integer> ERRORS = new TreeMap<>();
    private static volatile boolean ending;

    public static void main(String[] args) throws Exception {
        SocketChannel.open().close();
        int before = sockets(); // the runtime keeps one socket, which it needs to close others
        int deposits = Integer.parseInt(args[1]);
        Duration ttl = Duration.ofMillis(Long.parseLong(args[2]));
        Starved starved = new Starved();
        Thread watch = daemon(starved::watch);
        daemon(Faults::awaitEnd);
        FencelockClient client = FencelockClient.builder(args[0]).timeout(Duration.ofSeconds(2)).build();
        List<Thread> workers = new ArrayList<>();
        for (int n = 0; n < deposits; n++) workers.add(daemon(() -> work(client, ttl, starved)));
        for (Thread worker : workers) worker.join();
        client.close();
        watch.join();
        say(Map.of("errors", ERRORS, "leaks", leaks(before)));
    }

    private static Thread daemon(Runnable run) {
        Thread thread = new Thread(run, "fault run");
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private static void awaitEnd() {
        try {
            System.in.readAllBytes();
        } catch (IOException e) {
            // It has ended.
        }
        ending = true;
    }

    private static synchronized void say(Map<String, ?> line) {
        System.out.println(new String(Json.bytes(line), StandardCharsets.UTF_8));
    }

    private static void work(FencelockClient client, Duration ttl, Starved starved) {
        Connection connection = null;
        while (!ending) {
            try {
                if (connection == null || connection.isClosed()) connection = Databases.of("DATABASE_URL").getConnection();
                deposit(client, connection, ttl, starved);
            } catch (InterruptedException e) {
                note("unexpected: " + e);
            } catch (FencelockException | SQLException e) {
                note(e.getClass().getSimpleName() + (e instanceof SQLException sql ? " " + sql.getSQLState() : ""));
                pause();
            } catch (RuntimeException e) {
                note("unexpected: " + e);
                pause();
            }
        }
        try {
            if (connection != null) connection.close();
        } catch (SQLException e) {
            note("unexpected: " + e);
        }
    }

    private static void pause() {
        try {
            Thread.sleep(STEP);
        } catch (InterruptedException e) {
            note("unexpected: " + e);
        }
    }

    private static synchronized void note(String error) {
        ERRORS.merge(error, 1, Integer::sum);
    }

    @SafeVarargs
    private static <T> T one(T... of) {
        return of[ThreadLocalRandom.current().nextInt(of.length)];
    }

    private static void deposit(FencelockClient client, Connection connection, Duration ttl, Starved starved) throws InterruptedException, SQLException {
        int account = 1 + ThreadLocalRandom.current().nextInt(ACCOUNTS);
        String id = ProcessHandle.current().pid() + "-" + UUID.randomUUID();
        boolean interrupts = one(true, false); // whether a loss interrupts the work, or the work checks its lease
        Duration wait = Duration.ofSeconds(one(0, 5, 20));
        LockOptions options = LockOptions.defaults().ttl(ttl).waitAtMost(wait);
        long due = System.nanoTime() + wait.toNanos();
        boolean[] granted = {false};
        try {
            client.<Void, Exception>withLock("accounts/" + account, interrupts ? options.interruptOnLoss() : options, lease -> {
                granted[0] = true;
                called(due, starved);
                long begin = System.nanoTime();
                String[] at = {"work"};
                try {
                    // Most work is short; some outlives the TTL.
                    for (long left = one(20L, 100L, 300L, ttl.toMillis() * 3 / 2); left > 0; left -= STEP) {
                        Thread.sleep(STEP);
                        if (!interrupts) lease.check();
                    }
                    at[0] = "claim";
                    Fenced.<Void, RuntimeException>run(connection, lease, tx -> {
                        at[0] = "select";
                        long balance = balance(tx, account);
                        at[0] = "write";
                        update(tx, "INSERT INTO effects (id, account) VALUES (?, ?)", id, account);
                        update(tx, "UPDATE accounts SET balance = ? WHERE id = ?", balance + 1, account);
                        at[0] = "commit";
                        return null;
                    });
                } finally {
                    long end = System.nanoTime();
                    long until = lease.untilNanoTime();
                    say(Map.of("work", List.of(account, begin / 1e9, end / 1e9, until / 1e9, starved.within(until, end)), "at", at[0]));
                }
                say(Map.of("effect", id));
                return null;
            });
        } catch (InterruptedException | SQLException | RuntimeException e) {
            if (!granted[0]) called(due, starved);
            throw e;
        } catch (Exception e) {
            throw new IllegalStateException(e);
        }
    }

    /** Reports how late the call for a lease has ended, which was due at {@code due}. */
    private static void called(long due, Starved starved) {
        long now = System.nanoTime();
        say(Map.of("call", List.of((now - due) / 1e9, starved.within(due, now))));
    }

    private static long balance(Connection tx, int account) throws SQLException {
        try (PreparedStatement query = tx.prepareStatement("SELECT balance FROM accounts WHERE id = ?")) {
            query.setInt(1, account);
            try (ResultSet result = query.executeQuery()) {
                result.next();
                return result.getLong(1);
            }
        }
    }

    private static void update(Connection tx, String sql, Object first, int account) throws SQLException {
        try (PreparedStatement update = tx.prepareStatement(sql)) {
            update.setObject(1, first);
            update.setInt(2, account);
            update.executeUpdate();
        }
    }

    /** Counts the client's threads and sockets that are left. Threads end some seconds after their last task; before Java 21 sockets end only by garbage collection. */
    private static Map<String, Integer> leaks(int before) throws Exception {
        long end = System.nanoTime() + Duration.ofSeconds(25).toNanos();
        while (true) {
            System.gc();
            int threads = (int) Thread.getAllStackTraces().keySet().stream().filter(t -> t.getName().startsWith("fencelock") || t.getName().startsWith("HttpClient")).count();
            int sockets = sockets() - before;
            if ((threads == 0 && sockets == 0) || System.nanoTime() > end) return Map.of("threads", threads, "sockets", sockets);
            Thread.sleep(10 * STEP);
        }
    }

    private static int sockets() throws IOException {
        int n = 0;
        try (Stream<Path> files = Files.list(Path.of("/proc/self/fd"))) {
            for (Path file : files.toList()) {
                try {
                    if (Files.readSymbolicLink(file).toString().startsWith("socket")) n++;
                } catch (IOException e) {
                    // The descriptor of this listing, which is closed by now.
                }
            }
        }
        return n;
    }

    /** Measures for how long threads of this process were ready to run and got no processor, as the kernel counts it. */
    private static final class Starved {
        private record Piece(long from, long to, double delayed) {}

        private final Deque<Piece> pieces = new ArrayDeque<>();
        private long last = System.nanoTime();
        private Map<String, Long> before = delays();

        private static Map<String, Long> delays() {
            Map<String, Long> delays = new HashMap<>();
            try (Stream<Path> tasks = Files.list(Path.of("/proc/self/task"))) {
                for (Path task : tasks.toList()) {
                    try {
                        delays.put(task.toString(), Long.parseLong(Files.readString(task.resolve("schedstat")).split(" ")[1]));
                    } catch (IOException e) {
                        // The thread has ended.
                    }
                }
            } catch (IOException e) {
                throw new IllegalStateException(e);
            }
            return delays;
        }

        private synchronized void look() {
            Map<String, Long> after = delays();
            long now = System.nanoTime();
            long longest = 0;
            for (Map.Entry<String, Long> each : after.entrySet()) longest = Math.max(longest, each.getValue() - before.getOrDefault(each.getKey(), each.getValue()));
            pieces.add(new Piece(last, now, longest / 1e9));
            if (pieces.size() > 1000) pieces.remove();
            last = now;
            before = after;
        }

        void watch() {
            while (!ending) {
                look();
                pause();
            }
        }

        /** The most seconds for which a thread can have been delayed between two times. */
        synchronized double within(long from, long to) {
            look();
            double sum = 0;
            for (Piece piece : pieces) sum += Math.max(0, Math.min(piece.delayed, (Math.min(piece.to, to) - Math.max(piece.from, from)) / 1e9));
            return sum;
        }
    }
}
