package io.github.fencelock;

import java.lang.management.ClassLoadingMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;

/** Prints how many classes the first and the second call of a process load, and how many milliseconds they take: FirstCall URL */
final class FirstCall {
    public static void main(String[] args) throws Exception {
        ClassLoadingMXBean classes = ManagementFactory.getClassLoadingMXBean();
        LockOptions options = LockOptions.defaults().waitAtMost(Duration.ofSeconds(30));
        // The timeout is long, so that no try is repeated on a busy machine: a repetition would load more classes.
        try (FencelockClient client = FencelockClient.builder(args[0]).timeout(Duration.ofSeconds(30)).build()) {
            for (String call : new String[] {"first", "second"}) {
                long loaded = classes.getTotalLoadedClassCount();
                long begun = System.nanoTime();
                client.withLock("first call", options, Lease::token);
                System.out.println(call + " " + (classes.getTotalLoadedClassCount() - loaded) + " " + (System.nanoTime() - begun) / 1_000_000);
            }
        }
    }
}
