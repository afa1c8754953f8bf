package io.github.fencelock;

import java.io.PrintWriter;
import java.net.URI;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.SQLException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.logging.Logger;
import javax.sql.DataSource;

/** The databases that the Go tests make, and leases for them. */
final class Databases {
    private Databases() {}

    /** The database whose URL is in an environment variable: DATABASE_URL or MARIADB_URL. */
    static DataSource of(String variable) {
        return of(variable, -1);
    }

    /** The same database through another port of this machine, unless the port is negative. */
    static DataSource of(String variable, int port) {
        URI url = URI.create(System.getenv(variable));
        String kind = url.getScheme().startsWith("postgres") ? "postgresql" : "mariadb";
        String[] user = (url.getUserInfo() + ":").split(":");
        String host = port >= 0 ? "127.0.0.1:" + port : url.getHost() + (url.getPort() < 0 ? "" : ":" + url.getPort());
        return new Plain("jdbc:" + kind + "://" + host + url.getPath(), user[0], user.length > 1 ? user[1] : "");
    }

    /** A lease of the resources with these tokens. It is valid for so many milliseconds. */
    static Lease lease(long validity, Map<String, Long> tokens) {
        return lease(validity, 60_000, tokens);
    }

    static Lease lease(long validity, long ttl, Map<String, Long> tokens) {
        List<Object> parts = new ArrayList<>();
        tokens.forEach((resource, token) -> parts.add(Map.of("resource", resource, "fencing_token", token)));
        return new Lease(null, new Server.Answer(Clock.now(), Map.of("lease_id", "secret", "ttl_ms", ttl, "waited_ms", 0, "validity_ms", validity, "resources", parts)));
    }

    static Lease lease(String resource, long token) {
        return lease(60_000, Map.of(resource, token));
    }

    /** Gives each caller a new connection. */
    private record Plain(String url, String user, String password) implements DataSource {
        @Override
        public Connection getConnection() throws SQLException {
            return DriverManager.getConnection(url, user, password);
        }

        @Override
        public Connection getConnection(String user, String password) throws SQLException {
            return DriverManager.getConnection(url, user, password);
        }

        @Override
        public PrintWriter getLogWriter() {
            return null;
        }

        @Override
        public void setLogWriter(PrintWriter out) {}

        @Override
        public void setLoginTimeout(int seconds) {}

        @Override
        public int getLoginTimeout() {
            return 0;
        }

        @Override
        public Logger getParentLogger() {
            return Logger.getGlobal();
        }

        @Override
        public <T> T unwrap(Class<T> type) throws SQLException {
            throw new SQLException();
        }

        @Override
        public boolean isWrapperFor(Class<?> type) {
            return false;
        }
    }
}
