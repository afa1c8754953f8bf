package io.micrometer.core.instrument;

import java.time.Duration;

/** The shape of Micrometer's interface, whose jar Debian does not have. */
public interface Timer {
    void record(Duration duration);
}
