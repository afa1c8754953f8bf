package io.github.fencelock;

import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;

/** The methods that the Java code of README.md leaves to the reader. The Go test makes a program of that code. */
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
