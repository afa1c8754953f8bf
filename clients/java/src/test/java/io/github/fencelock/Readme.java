package io.github.fencelock;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/** What the Java of README.md, which the Go test puts into a program, leaves to the reader. */
class Readme {
    static long select(Connection connection, String sql) throws SQLException {
        try (PreparedStatement query = connection.prepareStatement(sql); ResultSet result = query.executeQuery()) {
            result.next();
            return result.getLong(1);
        }
    }

    static int update(Connection connection, String sql, long value) throws SQLException {
        try (PreparedStatement update = connection.prepareStatement(sql)) {
            update.setLong(1, value);
            return update.executeUpdate();
        }
    }
}
