package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static org.junit.jupiter.api.Assertions.fail;

import java.lang.reflect.Proxy;
import java.net.URI;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.atomic.AtomicInteger;
import javax.sql.DataSource;
import org.junit.jupiter.api.Nested;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Fenced on a real Postgres and a real MariaDB. */
@Timeout(60)
class GuardTest {
    @Nested
    class Postgres extends Guards {
        Postgres() {
            super(Databases.of("DATABASE_URL"), "SELECT fencing.claim(?, ?)");
        }
    }

    @Nested
    class MariaDb extends Guards {
        MariaDb() {
            super(Databases.of("MARIADB_URL"), "SELECT fencing_claim(?, ?)");
        }

        /** In MariaDB a claim counts until another connection claims, unless it is removed. */
        @Test
        void aClaimDoesNotOutliveItsTransaction() throws Exception {
            try (Connection connection = source.getConnection()) {
                deposit(connection, 11, Databases.lease(name(11), 34));
                connection.setAutoCommit(false);
                SQLException error = assertThrows(SQLException.class, () -> write(connection, 11, 99));
                assertEquals(31002, error.getErrorCode());
                connection.rollback();
            }
        }

        /**
         * A claim does not outlive a rollback either, and the session has its own limits of idle transactions again. MariaDB uses the last two instead of
         * the first if they are not 0.
         */
        @Test
        void aTransactionLeavesNothingInItsConnection() throws Exception {
            try (Connection connection = source.getConnection(); Statement statement = connection.createStatement()) {
                for (String setting : List.of("idle_transaction_timeout", "idle_write_transaction_timeout", "idle_readonly_transaction_timeout")) {
                    for (long own : new long[] {0, 7, 100}) {
                        boolean stays = own == 7 || own == 0 && !setting.equals("idle_transaction_timeout");
                        statement.execute("SET SESSION " + setting + " = " + own);
                        assertThrows(ArithmeticException.class, () -> Fenced.<Void, RuntimeException>run(connection, Databases.lease(name(14), 1), tx -> {
                            assertEquals(stays ? own : 60, limit(tx, setting));
                            throw new ArithmeticException();
                        }));
                        assertEquals(own, limit(connection, setting));
                        deposit(connection, 14, Databases.lease(name(14), 1));
                        assertEquals(own, limit(connection, setting));
                    }
                }
                Fenced.<Void, RuntimeException>run(connection, Databases.lease(name(14), 1), tx -> null);
                assertThrows(ArithmeticException.class, () -> Fenced.<Void, RuntimeException>run(connection, Databases.lease(name(14), 1), tx -> {
                    throw new ArithmeticException();
                }));
                connection.setAutoCommit(false);
                assertEquals(31002, assertThrows(SQLException.class, () -> write(connection, 14, 99)).getErrorCode());
                connection.rollback();
            }
        }

        /** The holder is paused before each of its packets in turn, from the one that sets the limit to the last. */
        @Test
        @Tag("long")
        void aHolderThatIsPausedBeforeAnyPacketKeepsNoSuccessorFromItsRows() throws Exception {
            for (boolean fails : new boolean[] {false, true}) {
                List<String> packets = new ArrayList<>();
                for (int n = 1; n == 1 || packets.get(n - 2) != null; n++) packets.add(paused(fails, n));
                String end = fails ? "ROLLBACK" : "COMMIT";
                assertTrue(packets.stream().anyMatch(packet -> packet != null && packet.toUpperCase(Locale.ROOT).contains(end)), packets::toString);
            }
        }

        private static String paused(boolean fails, int n) throws Exception {
            URI url = URI.create(System.getenv("MARIADB_URL"));
            long token = System.nanoTime();
            try (Pause pause = new Pause(url.getHost(), url.getPort(), n, () -> Fenced.<Void, RuntimeException>run(Databases.of("MARIADB_URL"), Databases.lease(8_000, Map.of(name(16), token + 1)), tx -> null))) {
                Exception ended = null;
                try {
                    Fenced.<Void, RuntimeException>run(Databases.of("MARIADB_URL", pause.port()), Databases.lease(60_000, 1000, Map.of(name(16), token)), tx -> {
                        write(tx, 16, token);
                        if (fails) throw new ArithmeticException();
                        return null;
                    });
                } catch (SQLException | StaleTokenException | ArithmeticException e) {
                    ended = e;
                }
                String packet = pause.packet();
                if (packet == null) assertEquals(fails, ended instanceof ArithmeticException, String.valueOf(ended));
                return packet;
            }
        }

        /** A pool would give a connection that is only closed to its next user, who would then have the claim. */
        @Test
        void aConnectionThatCannotForgetIsAborted() throws Exception {
            try (Connection real = source.getConnection()) {
                AtomicInteger aborted = new AtomicInteger();
                Connection connection = (Connection) Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {Connection.class}, (self, method, args) -> {
                    if (method.getName().equals("setAutoCommit") && args[0].equals(true)) throw new SQLException("mine");
                    if (method.getName().equals("abort")) aborted.incrementAndGet();
                    return method.invoke(real, args);
                });
                assertEquals("done", Fenced.<String, RuntimeException>run(connection, Databases.lease(name(17), 1), tx -> "done"));
                assertEquals(1, aborted.get());
                assertTrue(real.isClosed());
            }
        }

        private static long limit(Connection connection, String setting) throws SQLException {
            try (Statement statement = connection.createStatement(); ResultSet result = statement.executeQuery("SELECT @@" + setting)) {
                result.next();
                return result.getLong(1);
            }
        }
    }

    abstract static class Guards {
        private static final int BASE = 100; // the test of README.md uses the first account

        final DataSource source;
        private final String claim;

        Guards(DataSource source, String claim) {
            this.source = source;
            this.claim = claim;
        }

        static String name(int id) {
            return "accounts/" + (BASE + id);
        }

        static long read(Connection connection, int id) throws SQLException {
            try (PreparedStatement query = connection.prepareStatement("SELECT balance FROM accounts WHERE id = ?")) {
                query.setInt(1, BASE + id);
                try (ResultSet result = query.executeQuery()) {
                    result.next();
                    return result.getLong(1);
                }
            }
        }

        static void write(Connection connection, int id, long balance) throws SQLException {
            try (PreparedStatement update = connection.prepareStatement("UPDATE accounts SET balance = ? WHERE id = ?")) {
                update.setLong(1, balance);
                update.setInt(2, BASE + id);
                update.executeUpdate();
            }
        }

        private void claim(Connection connection, String name, long token) throws SQLException {
            try (PreparedStatement statement = connection.prepareStatement(claim)) {
                statement.setString(1, name);
                statement.setLong(2, token);
                statement.executeQuery().close();
            }
        }

        static void deposit(Connection connection, int id, Lease lease) throws SQLException {
            Fenced.<Void, RuntimeException>run(connection, lease, tx -> {
                write(tx, id, read(tx, id) + 10);
                return null;
            });
        }

        private long balance(int id) throws SQLException {
            try (Connection connection = source.getConnection()) {
                return read(connection, id);
            }
        }

        @Test
        void depositsUnderAToken() throws Exception {
            try (Connection connection = source.getConnection()) {
                deposit(connection, 1, Databases.lease(name(1), 34));
                deposit(connection, 1, Databases.lease(name(1), 34));
                assertTrue(connection.getAutoCommit());
            }
            assertEquals(20, balance(1));
            assertEquals(20L, Fenced.<Long, RuntimeException>run(source, Databases.lease(name(1), 35), tx -> read(tx, 1)));
        }

        @Test
        void aStaleTokenWritesNothing() throws Exception {
            try (Connection connection = source.getConnection()) {
                deposit(connection, 2, Databases.lease(name(2), 34));
                StaleTokenException stale = assertThrows(StaleTokenException.class, () -> deposit(connection, 2, Databases.lease(name(2), 33)));
                assertEquals(name(2) + " 33 34", stale.resource() + " " + stale.presented() + " " + stale.highest());
                assertTrue(stale.getCause() instanceof SQLException);
                deposit(connection, 2, Databases.lease(name(2), 35)); // the connection can be used again
            }
            assertEquals(20, balance(2));
        }

        @Test
        void aTokenThatBecomesStaleInTheWork() throws Exception {
            try (Connection connection = source.getConnection()) {
                deposit(connection, 4, Databases.lease(name(4), 9));
                assertThrows(StaleTokenException.class, () -> Fenced.<Void, RuntimeException>run(connection, Databases.lease(name(3), 5), tx -> {
                    write(tx, 3, 1);
                    claim(tx, name(4), 8);
                    return null;
                }));
            }
            assertEquals(0, balance(3));
            assertEquals(10, balance(4));
        }

        @Test
        void anExceptionRollsBack() throws Exception {
            try (Connection connection = source.getConnection()) {
                assertThrows(ArithmeticException.class, () -> Fenced.<Void, RuntimeException>run(connection, Databases.lease(name(5), 1), tx -> {
                    write(tx, 5, 99);
                    throw new ArithmeticException();
                }));
                assertTrue(connection.getAutoCommit());
            }
            assertEquals(0, balance(5));
        }

        @Test
        void aLostLeaseIsNotCommitted() throws Exception {
            Lease lease = Databases.lease(400, Map.of(name(6), 1L));
            assertThrows(LeaseLostException.class, () -> Fenced.<Void, RuntimeException>run(source, lease, tx -> {
                write(tx, 6, 99);
                while (!lease.isLost()) Thread.onSpinWait();
                return null;
            }));
            assertThrows(LeaseLostException.class, () -> Fenced.<Void, RuntimeException>run(source, lease, tx -> fail("it ran under a lost lease")));
            assertEquals(0, balance(6));
        }

        @Test
        void severalResources() throws Exception {
            Fenced.<Void, RuntimeException>run(source, Databases.lease(60_000, Map.of(name(7), 3L, name(8), 4L)), tx -> {
                write(tx, 7, 1);
                write(tx, 8, 2);
                return null;
            });
            assertEquals(1, balance(7));
            assertEquals(2, balance(8));
        }

        @Test
        void aTransactionThatHasBegunIsRefused() throws Exception {
            try (Connection connection = source.getConnection()) {
                connection.setAutoCommit(false);
                assertThrows(IllegalStateException.class, () -> deposit(connection, 9, Databases.lease(name(9), 1)));
            }
        }

        @Test
        void aClaimDoesNotWaitForLongerThanItsLease() throws Exception {
            try (Connection holder = source.getConnection()) {
                holder.setAutoCommit(false);
                claim(holder, name(10), 1);
                assertThrows(LeaseLostException.class, () -> Fenced.<Void, RuntimeException>run(source, Databases.lease(900, Map.of(name(10), 2L)), tx -> fail("two holders at once")));
                holder.rollback();
            }
        }

        /** The lease counts as lost before its validity ends, by its margin. */
        @Test
        void aClaimWaitsUntilItsLeaseCountsAsLost() throws Exception {
            LockOptions options = LockOptions.defaults().ttl(Duration.ofSeconds(4)).margin(Duration.ofSeconds(2));
            try (FencelockClient client = FencelockClient.of(System.getenv("FENCELOCK_URL"));
                    Connection holder = source.getConnection();
                    Lease lease = client.lock(name(13), options)) {
                holder.setAutoCommit(false);
                claim(holder, name(13), lease.token());
                long over = lease.untilNanoTime();
                Exception error = assertThrows(Exception.class, () -> Fenced.<Void, RuntimeException>run(source, lease, tx -> fail("two holders at once")));
                assertTrue(System.nanoTime() < over, "the claim ended after the validity: " + error);
                holder.rollback();
            }
        }

        /** The database ends the holder's session after the TTL of a second. The lease in this test is valid for longer: without that end the row would stay locked as long. */
        @Test
        void aHolderThatIsPausedInItsTransactionKeepsNoSuccessorFromItsRows() throws Exception {
            CountDownLatch paused = new CountDownLatch(1);
            CountDownLatch succeeded = new CountDownLatch(1);
            FutureTask<Void> holder = new FutureTask<>(() -> Fenced.<Void, Exception>run(source, Databases.lease(60_000, 1000, Map.of(name(15), 1L)), tx -> {
                write(tx, 15, 99);
                paused.countDown();
                succeeded.await();
                write(tx, 15, 100);
                return null;
            }));
            new Thread(holder).start();
            paused.await();
            try (Connection connection = source.getConnection()) {
                deposit(connection, 15, Databases.lease(name(15), 2));
            } finally {
                succeeded.countDown();
            }
            assertTrue(assertThrows(ExecutionException.class, holder::get).getCause() instanceof SQLException);
            assertEquals(10, balance(15));
        }

        @Test
        void aWriteWithoutAClaimIsRefused() throws Exception {
            try (Connection connection = source.getConnection()) {
                assertThrows(SQLException.class, () -> write(connection, 12, 99));
            }
        }
    }
}
