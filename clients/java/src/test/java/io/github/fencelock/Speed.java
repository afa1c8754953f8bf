package io.github.fencelock;

import java.lang.management.ManagementFactory;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * Compares the cost of a pair (acquire and release) with that of a bare loop over java.net.http: Speed URL ROUNDS PAIRS
 *
 * <p>Rounds alternate, so that a busy machine is busy for both. It prints the medians of the rounds' ratios by
 * the clock and by this process's processor time, as JSON. The test judges only the ratio by the clock.
 */
final class Speed {
    private interface Pair {
        void run() throws Exception;
    }

    private record Took(double clock, double processor) {}

    private static final LockOptions OPTIONS = LockOptions.defaults().ttl(Duration.ofSeconds(10)).waitAtMost(Duration.ZERO);
    private static final int WARM_UP = 10; // rounds, after which most of the code is compiled

    public static void main(String[] args) throws Exception {
        String url = args[0];
        int rounds = Integer.parseInt(args[1]);
        int pairs = Integer.parseInt(args[2]);
        HttpClient http = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
        Map<String, List<Took>> took = new LinkedHashMap<>();
        try (FencelockClient client = FencelockClient.of(url)) {
            Map<String, Pair> kinds = new LinkedHashMap<>();
            kinds.put("bare", () -> bare(http, url));
            kinds.put("pair", () -> client.acquire("speed/pair", OPTIONS).release());
            kinds.put("withLock", () -> client.withLock("speed/lock", OPTIONS, Lease::token));
            for (int n = -WARM_UP; n < rounds; n++) {
                for (Map.Entry<String, Pair> kind : kinds.entrySet()) {
                    Took round = round(kind.getValue(), pairs);
                    if (n >= 0) took.computeIfAbsent(kind.getKey(), k -> new ArrayList<>()).add(round);
                }
            }
        }
        System.out.println(new String(Json.bytes(said(took))));
    }

    /** The requests of a program without a client, and the responses that it has to read. */
    private static void bare(HttpClient http, String url) throws Exception {
        HttpRequest acquire = HttpRequest.newBuilder(URI.create(url + "/locks")).header("Content-Type", "application/json").header("Idempotency-Key", UUID.randomUUID().toString())
                .POST(HttpRequest.BodyPublishers.ofByteArray(Json.bytes(Map.of("resource", "speed/bare", "ttl_ms", 10_000)))).build();
        Map<String, Object> lease = Json.object(http.send(acquire, HttpResponse.BodyHandlers.ofByteArray()).body()).orElseThrow();
        HttpRequest release = HttpRequest.newBuilder(URI.create(url + "/leases/current")).header("Fencelock-Lease", Json.text(lease, "lease_id")).DELETE().build();
        http.send(release, HttpResponse.BodyHandlers.ofByteArray());
    }

    private static Took round(Pair pair, int pairs) throws Exception {
        com.sun.management.OperatingSystemMXBean system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long begun = System.nanoTime();
        long used = system.getProcessCpuTime();
        for (int n = 0; n < pairs; n++) pair.run();
        return new Took((System.nanoTime() - begun) / 1000.0 / pairs, (system.getProcessCpuTime() - used) / 1000.0 / pairs);
    }

    private static Map<String, Object> said(Map<String, List<Took>> took) {
        Map<String, Object> microseconds = new LinkedHashMap<>();
        Map<String, Object> ratios = new LinkedHashMap<>();
        Map<String, Object> others = new LinkedHashMap<>();
        List<Took> bare = took.get("bare");
        took.forEach((kind, rounds) -> {
            microseconds.put(kind + " by clock", Math.round(median(rounds.stream().mapToDouble(Took::clock).toArray())));
            microseconds.put(kind + " by processor", Math.round(median(rounds.stream().mapToDouble(Took::processor).toArray())));
            if (kind.equals("bare")) return;
            double[] clock = new double[rounds.size()];
            double[] processor = new double[rounds.size()];
            for (int n = 0; n < rounds.size(); n++) {
                clock[n] = rounds.get(n).clock() / bare.get(n).clock();
                processor[n] = rounds.get(n).processor() / bare.get(n).processor();
            }
            ratios.put(kind + " by clock", median(clock));
            others.put(kind + " by processor", median(processor));
        });
        return Map.of("microseconds", microseconds, "ratios", ratios, "others", others);
    }

    private static double median(double[] of) {
        Arrays.sort(of);
        return of[of.length / 2];
    }
}
