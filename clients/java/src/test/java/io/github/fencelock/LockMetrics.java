package io.github.fencelock;

import io.micrometer.core.instrument.MeterRegistry;
import java.time.Duration;
import org.slf4j.Logger;

/** An observer to copy that feeds Micrometer's meters and an SLF4J logger: {@code FencelockClient.builder(url).observer(new LockMetrics(registry, logger))}. */
public final class LockMetrics implements LockObserver {
    private final MeterRegistry meters;
    private final Logger log;

    public LockMetrics(MeterRegistry meters, Logger log) {
        this.meters = meters;
        this.log = log;
    }

    @Override
    public void granted(Lease lease, Duration waited) {
        meters.timer("fencelock.wait", "result", "granted").record(waited);
    }

    @Override
    public void failed(String resource, Throwable error, Duration waited) {
        meters.timer("fencelock.wait", "result", error.getClass().getSimpleName()).record(waited);
    }

    @Override
    public void released(Lease lease, Duration held) {
        meters.timer("fencelock.held", "end", "released").record(held);
    }

    @Override
    public void lost(Lease lease, LeaseLostException loss, Duration held) {
        meters.timer("fencelock.held", "end", "lost").record(held);
        log.warn("{} after {}", loss.getMessage(), held);
    }

    @Override
    public void retried(Retry retry) {
        meters.counter("fencelock.retries", "kind", retry.error().kind()).increment();
        log.info("try {} failed, the next one is in {}: {}", retry.tries(), retry.pause(), retry.error().getMessage());
    }
}
