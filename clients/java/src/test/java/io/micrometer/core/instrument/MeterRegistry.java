package io.micrometer.core.instrument;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The shape of Micrometer's class, whose jar Debian does not have: it counts what is recorded. */
public class MeterRegistry {
    public final Map<String, Integer> recorded = new ConcurrentHashMap<>();

    public Timer timer(String name, String... tags) {
        return duration -> record(name, tags);
    }

    public Counter counter(String name, String... tags) {
        return () -> record(name, tags);
    }

    private void record(String name, String... tags) {
        recorded.merge(name + List.of(tags), 1, Integer::sum);
    }
}
