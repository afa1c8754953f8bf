package io.github.fencelock;

import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The state of a resource.
 *
 * @param resource the name of the resource
 * @param holder the lease that holds the resource; empty while it is free
 * @param waiters how many requests wait in the queue
 * @param queue the first hundred waiting requests, in the order of the queue
 */
public record LockState(String resource, Optional<Holder> holder, long waiters, List<Waiter> queue) {
    /**
     * The public values of a lease.
     *
     * @param label the label that the holder gave itself; "" if it has none
     * @param token the fencing token
     * @param remaining the time until the lease ends, unless it is extended
     * @param ttl the TTL that the lease got from its acquire or its last extend
     * @param held for how long the lease has been held
     * @param metadata a JSON value of Map, List, String, Number and Boolean, if the lease has one
     */
    public record Holder(String label, long token, Duration remaining, Duration ttl, Duration held, Optional<Object> metadata) {}

    /** A request in the queue. */
    public record Waiter(String label, Duration waiting) {}

    /** {@return whether a lease holds the resource} */
    public boolean held() {
        return holder.isPresent();
    }

    static LockState of(Map<String, Object> lock) {
        Optional<Holder> holder = Boolean.TRUE.equals(lock.get("held"))
                ? Optional.of(new Holder(Json.text(lock, "holder"), Json.number(lock, "fencing_token"), duration(lock, "remaining_ms"), duration(lock, "ttl_ms"),
                        duration(lock, "held_ms"), Optional.ofNullable(lock.get("metadata"))))
                : Optional.empty();
        List<Waiter> queue = Json.objects(lock, "queue").stream().map(w -> new Waiter(Json.text(w, "holder"), duration(w, "waiting_ms"))).toList();
        return new LockState(Json.text(lock, "resource"), holder, Json.number(lock, "waiters"), queue);
    }

    private static Duration duration(Map<String, Object> of, String name) {
        return Duration.ofMillis(Json.number(of, name));
    }
}
