package io.micrometer.core.instrument;

/** The shape of Micrometer's interface, whose jar Debian does not have. */
public interface Counter {
    void increment();
}
