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
 * <p>In a transaction of Postgres that has claimed, nothing waits for a lock for longer than the work could take when it claimed (lock_timeout): until
 * the lease counts as lost. A session that is idle for the TTL is ended (idle_in_transaction_session_timeout).
 * In MariaDB the claim waits no longer, and run limits an idle transaction as well (idle_transaction_timeout).
 */
public final class Fenced {
    /**
     * What is done in a fenced transaction.
     *
     * @param <T> what it returns
     * @param <X> what it throws
     */
    @FunctionalInterface
    public interface Work<T, X extends Exception> {
        /**
         * Does it.
         *
         * @param connection the transaction's
         * @return what run returns
         * @throws SQLException if the database fails
         * @throws X if it fails otherwise
         */
        T run(Connection connection) throws SQLException, X;
    }

    private static final String STALE = "LK001";
    private static final int STALE_IN_MARIADB = 31001;
    private static final String WAITED_TOO_LONG = "55P03"; // lock_not_available
    private static final Set<Integer> WAITED_TOO_LONG_IN_MARIADB = Set.of(1205, 1969); // innodb_lock_wait_timeout, max_statement_time
    private static final String FORGET = "SET @fencing_claimer = NULL, SESSION idle_transaction_timeout = IFNULL(@fencing_idle, @@idle_transaction_timeout), @fencing_idle = NULL";
    private static final Pattern SAID = Pattern.compile("stale fencing token for '(.*)': presented (\\d+), highest seen (\\d+)", Pattern.DOTALL);

    private Fenced() {}

    /**
     * Runs work in a transaction that has claimed the lease's resources with their tokens before anything else, so that
     * what it reads is at least as new as the last write of any earlier holder. It commits when work returns, and rolls back when it throws.
     *
     * <p>The connection must be in autocommit, so outside of any transaction, and is again afterwards; one that cannot end its transaction is closed.
     *
     * <p>Throws LeaseLostException if the lease is lost, at the beginning or before the commit, and StaleTokenException if the
     * guard has seen a larger token; nothing is written then. Other exceptions are the driver's: those with the SQLSTATE 40001, 40P01 and
     * 55P03, and MariaDB's 1020, 1205, 1213 and 1969, may be repeated while the lease is held. After an exception of the commit itself the transaction may
     * have taken effect.
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
     * Undoes on the connection what the claim and the limit have set. That is after the end of the transaction: a holder that is paused between the two
     * would keep the rows for as long as its pause lasts. What the work returned or threw comes first. A connection that cannot end its transaction is
     * closed: autocommit would commit it.
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

    /** A pool would give a connection that is only closed to its next user. */
    private static void discard(Connection connection) {
        try {
            connection.abort(Runnable::run);
            connection.close();
        } catch (SQLException e) {
            // it is of no use already
        }
    }

    /**
     * Has MariaDB end the connection when it is idle in the transaction for the TTL, in whole seconds: a holder that is paused there would keep its
     * successor from the rows. A shorter limit of the session stays; {@link #end} restores what it had.
     */
    private static void limitIdle(Connection connection, Lease lease) throws SQLException {
        long seconds = Math.max(1, lease.ttl().plusNanos(Clock.SECOND - 1).toSeconds());
        String shorter = "@@idle_transaction_timeout BETWEEN 1 AND " + seconds;
        execute(connection, "SET @fencing_idle = @@idle_transaction_timeout, SESSION idle_transaction_timeout = IF(" + shorter + ", @@idle_transaction_timeout, " + seconds + ")");
    }

    private static void execute(Connection connection, String sql) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute(sql);
        }
    }

    /**
     * Runs work as above, with a connection of its own.
     *
     * @param <T> what the work returns
     * @param <X> what the work throws
     * @param source where it gets a connection
     * @param lease the lease
     * @param work what is done under the lease
     * @return what work returned
     * @throws SQLException if the database fails
     * @throws X if the work throws it
     */
    public static <T, X extends Exception> T run(DataSource source, Lease lease, Work<T, X> work) throws SQLException, X {
        lease.check();
        try (Connection connection = source.getConnection()) {
            if (!connection.getAutoCommit()) { // as some pools set it; they begin no transaction
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
     * Claims the lease's resources as the first statement of a transaction that somebody else began and ends: Spring,
     * Jakarta Transactions. It must be followed by {@link #beforeCommit} at its end.
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
     * Ends what {@link #claim} began: it throws LeaseLostException if the lease is lost, and the transaction is to be rolled back.
     *
     * @param connection a connection
     * @param lease the lease
     * @throws SQLException if the database fails
     */
    public static void beforeCommit(Connection connection, Lease lease) throws SQLException {
        if (isMariaDb(connection)) execute(connection, "SET @fencing_claimer = NULL"); // a claim counts there until another connection claims: no later transaction is to have it
        lease.check();
    }

    /** Sees to it, too, that a holder which hangs in the transaction does not hold up the next one. */
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

    /** For how long a claim may wait: until the lease counts as lost, so that a wait that is too long is reported as the loss. */
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

    /** Throws StaleTokenException for a refusal by the guard, LeaseLostException for a wait that has outlived the lease; else it returns the exception. */
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
