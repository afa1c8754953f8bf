package io.github.fencelock;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.sql.Connection;
import java.sql.SQLException;
import java.util.Map;
import java.util.function.LongSupplier;
import javax.sql.DataSource;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.jdbc.datasource.DataSourceUtils;
import org.springframework.jdbc.datasource.SingleConnectionDataSource;
import org.springframework.transaction.annotation.AnnotationTransactionAttributeSource;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.interceptor.TransactionInterceptor;
import org.springframework.transaction.support.TransactionSynchronizationAdapter;
import org.springframework.transaction.support.TransactionSynchronizationManager;
import org.springframework.transaction.support.TransactionTemplate;

/** The guard in transactions of Spring, on Postgres and MariaDB. */
@Timeout(60)
class SpringTest {
    /** Claims a lease's resources as the first statement of a transaction of Spring. */
    static final class FencedBySpring {
        static void claim(DataSource source, Lease lease) {
            Connection connection = DataSourceUtils.getConnection(source);
            try {
                Fenced.claim(connection, lease);
            } catch (SQLException e) {
                throw new IllegalStateException(e);
            }
            TransactionSynchronizationManager.registerSynchronization(new TransactionSynchronizationAdapter() {
                @Override
                public void beforeCommit(boolean readOnly) {
                    try {
                        Fenced.beforeCommit(connection, lease);
                    } catch (SQLException e) {
                        throw new IllegalStateException(e);
                    }
                }
            });
        }
    }

    /** The code of an application. */
    interface Accounts {
        long deposit(int id, long amount, Lease lease, LongSupplier more);
    }

    static class JdbcAccounts implements Accounts {
        private final DataSource source;

        JdbcAccounts(DataSource source) {
            this.source = source;
        }

        @Override
        @Transactional
        public long deposit(int id, long amount, Lease lease, LongSupplier more) {
            FencedBySpring.claim(source, lease);
            JdbcTemplate jdbc = new JdbcTemplate(source);
            long balance = jdbc.queryForObject("SELECT balance FROM accounts WHERE id = ?", Long.class, id) + amount;
            jdbc.update("UPDATE accounts SET balance = ? WHERE id = ?", balance, id);
            return balance + more.getAsLong();
        }
    }

    @Test
    void postgres() {
        accounts(Databases.of("DATABASE_URL"));
    }

    @Test
    void mariaDb() {
        accounts(Databases.of("MARIADB_URL"));
    }

    private static void accounts(DataSource source) {
        DataSourceTransactionManager transactions = new DataSourceTransactionManager(source);
        ProxyFactory proxy = new ProxyFactory(new JdbcAccounts(source));
        proxy.addAdvice(new TransactionInterceptor(transactions, new AnnotationTransactionAttributeSource()));
        Accounts accounts = (Accounts) proxy.getProxy();

        assertEquals(10, accounts.deposit(20, 10, Databases.lease("accounts/20", 34), () -> 0));
        assertEquals(33, assertThrows(StaleTokenException.class, () -> accounts.deposit(20, 10, Databases.lease("accounts/20", 33), () -> 0)).presented());
        Lease short_ = Databases.lease(500, Map.of("accounts/20", 35L));
        assertThrows(LeaseLostException.class, () -> accounts.deposit(20, 10, short_, () -> {
            while (!short_.isLost()) Thread.onSpinWait();
            return 0;
        }));
        Lease lease = Databases.lease("accounts/20", 36);
        long balance = new TransactionTemplate(transactions).execute(status -> {
            FencedBySpring.claim(source, lease);
            JdbcTemplate jdbc = new JdbcTemplate(source);
            jdbc.update("UPDATE accounts SET balance = balance + 5 WHERE id = 20");
            return jdbc.queryForObject("SELECT balance FROM accounts WHERE id = 20", Long.class);
        });
        assertEquals(15, balance);
        assertThrows(RuntimeException.class, () -> new JdbcTemplate(source).update("UPDATE accounts SET balance = 99 WHERE id = 20"));
    }

    /**
     * A pool gives a connection to its next user after a commit, a rollback and a refused claim, in any order: nobody writes there without a claim of
     * his own. MariaDB keeps who has claimed in the connection; what a rollback leaves there was never committed to a mark, so it admits nobody.
     */
    @Test
    void aClaimIsNotThePoolsNextUsers() {
        for (String database : new String[] {"DATABASE_URL", "MARIADB_URL"}) {
            SingleConnectionDataSource pool = new SingleConnectionDataSource(connected(Databases.of(database)), true);
            TransactionTemplate transactions = new TransactionTemplate(new DataSourceTransactionManager(pool));
            JdbcTemplate jdbc = new JdbcTemplate(pool);
            long token = 0;
            for (String order : new String[] {"r", "cr", "rc", "rcr", "sc", "crs", "rsr"}) {
                for (char step : order.toCharArray()) {
                    Lease lease = Databases.lease("accounts/21", step == 's' ? Math.max(1, token - 1) : ++token + 1);
                    try {
                        transactions.execute(status -> {
                            FencedBySpring.claim(pool, lease);
                            jdbc.update("UPDATE accounts SET balance = balance + 1 WHERE id = 21");
                            if (step == 'r') throw new ArithmeticException();
                            return null;
                        });
                    } catch (ArithmeticException | StaleTokenException e) {
                        // rolled back
                    }
                    assertThrows(RuntimeException.class, () -> jdbc.update("UPDATE accounts SET balance = 99 WHERE id = 21"), database + " " + order);
                    assertThrows(RuntimeException.class, () -> transactions.execute(status -> jdbc.update("UPDATE accounts SET balance = 99 WHERE id = 21")), database + " " + order);
                }
            }
            pool.destroy();
        }
    }

    private static Connection connected(DataSource source) {
        try {
            return source.getConnection();
        } catch (SQLException e) {
            throw new IllegalStateException(e);
        }
    }
}
