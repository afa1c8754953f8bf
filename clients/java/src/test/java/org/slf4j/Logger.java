package org.slf4j;

/** The shape of SLF4J's interface, of which the tests need no more. */
public interface Logger {
    void info(String format, Object... arguments);

    void warn(String format, Object... arguments);
}
