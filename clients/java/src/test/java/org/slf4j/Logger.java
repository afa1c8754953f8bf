package org.slf4j;

/** The part of SLF4J's interface that the tests need. */
public interface Logger {
    void info(String format, Object... arguments);

    void warn(String format, Object... arguments);
}
