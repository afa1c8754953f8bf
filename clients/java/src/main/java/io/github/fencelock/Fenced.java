package io.github.fencelock;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;
import java.util.Locale;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import javax.sql.DataSource;

/**
 * Presents a lease's token to the guard in Postgres (docs/reference/guard.md) or MariaDB (docs/reference/guard-mariadb.md), through JDBC.
 *
 * <p>A holder that is paused in its transaction does not keep the next one waiting for long. After the claim in Postgres, no statement of the
 * transaction waits for a lock for longer than the work had left at the claim, until the lease counts as lost (lock_timeout). Postgres ends a session
 * that is idle in the transaction for the TTL (idle_in_transaction_session_timeout). In MariaDB the claim itself has the same limit, and {@code run}
 * also has MariaDB end an idle transaction after the TTL (idle_transaction_timeout).
 */
public final class Fenced {
    /**
     * The work in a fenced transaction.
     *
     * @param <T> what it returns
     * @param <X> what it throws
     */
    @FunctionalInterface
    public interface Work<T, X extends Exception> {
        /**
         * Does the work.
         *
         * @param connection the transaction's connection
         * @return the value that run returns
         * @throws SQLException if the database fails
         * @throws X if the work fails otherwise
         */
        T run(Connection connection) throws SQLException, X;
    }

    private static final String STALE = "LK001";
    private static final int STALE_IN_MARIADB = 31001;
    private static final String WAITED_TOO_LONG = "55P03"; // lock_not_available
    private static final Set<Integer> WAITED_TOO_LONG_IN_MARIADB = Set.of(1205, 1969); // innodb_lock_wait_timeout, max_statement_time
    private static final String FORGET = "SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout), "
        + "SESSION idle_write_transaction_timeout = IFNULL(@fencing_idle_write, @@idle_write_transaction_timeout), "
        + "SESSION idle_readonly_transaction_timeout = IFNULL(@fencing_idle_read, @@idle_readonly_transaction_timeout), "
        + "@fencing_idle = NULL, @fencing_idle_write = NULL, @fencing_idle_read = NULL";
    private static final Pattern SAID = Pattern.compile("stale fencing token for '(.*)': presented (\\d+), highest seen (\\d+)", Pattern.DOTALL);

    private Fenced() {}

    /**
     * Runs work in a transaction that first claims the lease's resources with their tokens, so that
     * work reads data at least as new as the last write of any earlier holder. The transaction commits when work returns, and rolls back when work
     * throws.
     *
     * <p>The connection must be in autocommit, and so outside of any transaction. It is in autocommit again afterwards. A connection that cannot end its
     * transaction is closed.
     *
     * <p>Throws LeaseLostException if the lease is lost, at the beginning or before the commit, and StaleTokenException if the
     * guard has seen a larger token; nothing is written then. Other exceptions come from the driver. After those with the SQLSTATE 40001, 40P01 and
     * 55P03, and MariaDB's 1020, 1205, 1213 and 1969, the transaction may be repeated while the lease is held. After an exception of the commit itself
     * the transaction may have taken effect.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param connection a connection
     * @param lease the lease
     * @param work what is done under the lease
     * @return what work returned
     * @throws SQLException if the database fails
     * @throws X if the work throws it
     */
    public static <T, X extends Exception> T run(Connection connection, Lease lease, Work<T, X> work) throws SQLException, X {
        lease.check();
        if (!connection.getAutoCommit()) {
            throw new IllegalStateException("the connection is not in autocommit: what its transaction has read may be older than the claim (in a transaction of a framework, begin with Fenced.claim)");
        }
        connection.setAutoCommit(false);
        boolean committed = false;
        try {
            T value = transaction(connection, lease, work);
            committed = true;
            return value;
        } finally {
            end(connection, committed);
        }
    }

    /**
     * Ends the transaction, and then undoes on the connection what the claim and the limit have set. The limit has to last until the end of the
     * transaction: without it a holder that is paused there would keep the rows for the whole pause. An exception here does not replace the result of
     * the work. A connection that cannot end its transaction is closed, because autocommit would commit the transaction.
     */
    private static void end(Connection connection, boolean committed) throws SQLException {
        try {
            if (!committed) connection.rollback();
            if (isMariaDb(connection)) execute(connection, FORGET);
            connection.setAutoCommit(true);
        } catch (SQLException e) {
            discard(connection);
        }
    }

    /** Aborts a connection before it is closed: a pool would hand one that is only closed to its next user. */
    private static void discard(Connection connection) {
        try {
            connection.abort(Runnable::run);
            connection.close();
        } catch (SQLException e) {
            // The connection is broken already.
        }
    }

    /**
     * Makes MariaDB end the connection when it is idle in the transaction for the TTL, rounded up to whole seconds: a paused holder would keep its
     * successor from the rows. A shorter limit of the session stays. MariaDB has two more limits, for transactions that have written and for those
     * that have not, and uses one that is not 0 instead of the first. {@link #end} restores the session's limits.
     */
    private static void limitIdle(Connection connection, Lease lease) throws SQLException {
        long seconds = Math.max(1, lease.ttl().plusNanos(Clock.SECOND - 1).toSeconds());
        String shorter = "@@idle_transaction_timeout BETWEEN 1 AND " + seconds;
        execute(connection, "SET @fencing_idle = @@idle_transaction_timeout, "
            + "@fencing_idle_write = @@idle_write_transaction_timeout, @fencing_idle_read = @@idle_readonly_transaction_timeout, "
            + "SESSION idle_transaction_timeout = IF(" + shorter + ", @@idle_transaction_timeout, " + seconds + "), "
            + "SESSION idle_write_transaction_timeout = LEAST(@@idle_write_transaction_timeout, " + seconds + "), "
            + "SESSION idle_readonly_transaction_timeout = LEAST(@@idle_readonly_transaction_timeout, " + seconds + ")");
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    /**
     * Runs work like {@link #run(Connection, Lease, Work)}, with a connection that it takes from a source and gives back.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param source the source of the connection
     * @param lease the lease
     * @param work what is done under the lease
     * @return what work returned
     * @throws SQLException if the database fails
     * @throws X if the work throws it
     */
    public static <T, X extends Exception> T run(DataSource source, Lease lease, Work<T, X> work) throws SQLException, X {
        lease.check();
        try (Connection connection = source.getConnection()) {
            if (!connection.getAutoCommit()) { // some pools switch autocommit off, but begin no transaction
                connection.rollback();
                connection.setAutoCommit(true);
                try {
                    return run(connection, lease, work);
                } finally {
                    if (!connection.isClosed()) connection.setAutoCommit(false);
                }
            }
            return run(connection, lease, work);
        }
    }

    private static <T, X extends Exception> T transaction(Connection connection, Lease lease, Work<T, X> work) throws SQLException, X {
        try {
            if (isMariaDb(connection)) limitIdle(connection, lease);
            claim(connection, lease);
            T value = work.run(connection);
            lease.check();
            connection.commit();
            return value;
        } catch (SQLException e) {
            throw translated(e, lease);
        }
    }

    /**
     * Claims the lease's resources as the first statement of a transaction that a framework begins and ends, such as Spring or
     * Jakarta Transactions. The transaction must call {@link #beforeCommit} at its end. Throws LeaseLostException if the lease is lost, and
     * StaleTokenException if the guard has seen a larger token; the transaction has to be rolled back then. After a rollback the claim
     * counts for nobody.
     *
     * @param connection a connection
     * @param lease the lease
     * @throws SQLException if the database fails
     */
    public static void claim(Connection connection, Lease lease) throws SQLException {
        lease.check();
        boolean mariadb = isMariaDb(connection);
        try {
            for (Lease.Part part : lease.parts()) {
                if (mariadb) claimInMariaDb(connection, lease, part);
                else claimInPostgres(connection, lease, part);
            }
        } catch (SQLException e) {
            throw translated(e, lease);
        }
    }

    /**
     * Ends the claim of {@link #claim}. Throws LeaseLostException if the lease is lost; the transaction has to be rolled back then. After a rollback the claim
     * counts for nobody.
     *
     * @param connection a connection
     * @param lease the lease
     * @throws SQLException if the database fails
     */
    public static void beforeCommit(Connection connection, Lease lease) throws SQLException {
        if (isMariaDb(connection)) execute(connection, "SET @fencing_claimer = NULL"); // in MariaDB a claim outlives its transaction; no later one may use it
        lease.check();
    }

    /** Claims a resource in Postgres, and limits the transaction so that a holder that hangs in it does not hold up the next one. */
    private static void claimInPostgres(Connection connection, Lease lease, Lease.Part part) throws SQLException {
        String proof = part.proof().isEmpty() ? "" : ", ?";
        String sql = "SELECT set_config('lock_timeout', ?, true), set_config('idle_in_transaction_session_timeout', ?, true), fencing.claim(?, ?" + proof + ")";
        try (PreparedStatement claim = connection.prepareStatement(sql)) {
            claim.setString(1, Long.toString(milliseconds(lease)));
            claim.setString(2, Long.toString(Math.max(1, lease.ttl().toMillis())));
            claim.setString(3, part.resource());
            claim.setLong(4, part.token());
            if (!part.proof().isEmpty()) claim.setString(5, part.proof());
            read(claim);
        }
    }

    private static void claimInMariaDb(Connection connection, Lease lease, Lease.Part part) throws SQLException {
        long milliseconds = milliseconds(lease);
        String limits = String.format(Locale.ROOT, "max_statement_time = %.3f, innodb_lock_wait_timeout = %d", milliseconds / 1000.0, milliseconds / 1000 + 1);
        try (PreparedStatement claim = connection.prepareStatement("SET STATEMENT " + limits + " FOR SELECT fencing_claim(?, ?)")) {
            claim.setString(1, part.resource());
            claim.setLong(2, part.token());
            read(claim);
        }
    }

    /** The milliseconds that a claim may wait: until the lease counts as lost, so that a longer wait ends with the loss. */
    private static long milliseconds(Lease lease) {
        return Math.max(1, lease.left() / Clock.MILLISECOND + 1);
    }

    private static void read(PreparedStatement claim) throws SQLException {
        try (ResultSet result = claim.executeQuery()) {
            result.next();
        }
    }

    private static boolean isMariaDb(Connection connection) throws SQLException {
        String product = connection.getMetaData().getDatabaseProductName().toLowerCase(Locale.ROOT);
        return product.contains("mariadb") || product.contains("mysql");
    }

    /** Throws StaleTokenException if the guard refused the token, and LeaseLostException if a wait has outlived the lease. Returns any other exception. */
    private static SQLException translated(SQLException error, Lease lease) {
        if (WAITED_TOO_LONG.equals(error.getSQLState()) || WAITED_TOO_LONG_IN_MARIADB.contains(error.getErrorCode())) {
            Optional<LeaseLostException> loss = lease.loss();
            if (loss.isPresent()) throw (LeaseLostException) loss.get().initCause(error);
        }
        if (!STALE.equals(error.getSQLState()) && error.getErrorCode() != STALE_IN_MARIADB) return error;
        Matcher said = SAID.matcher(String.valueOf(error.getMessage()));
        boolean known = said.find();
        String resource = known ? said.group(1).replace("''", "'") : lease.resource();
        StaleTokenException stale = new StaleTokenException("the token of " + Errors.shown(resource) + " is stale: stop, and acquire again",
                known ? Long.parseLong(said.group(2)) : 0, known ? Long.parseLong(said.group(3)) : 0);
        stale.about(resource);
        stale.initCause(error);
        throw stale;
    }
}
