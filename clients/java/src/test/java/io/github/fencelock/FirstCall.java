package io.github.fencelock;

import java.lang.management.ClassLoadingMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;

/** How many classes, and how many milliseconds, the first call of a process needs, and the second: FirstCall URL */
final class FirstCall {
    public static void main(String[] args) throws Exception {
        ClassLoadingMXBean classes = ManagementFactory.getClassLoadingMXBean();
        LockOptions options = LockOptions.defaults().waitAtMost(Duration.ofSeconds(30));
        // No try ends early on a busy machine: a repeated one needs classes of its own.
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
