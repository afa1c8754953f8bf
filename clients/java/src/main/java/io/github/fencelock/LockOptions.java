package io.github.fencelock;

import java.time.Duration;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;

/** What to acquire, and how. What is left out is left to the service. Options do not change: each method returns others. */
public final class LockOptions implements Cloneable {
    private static final LockOptions DEFAULTS = new LockOptions();

    private Duration ttl;
    private Duration wait; // null: for as long as it takes
    private Duration minHold;
    private Duration maxHold;
    private Integer slots;
    private String holder;
    private Object metadata;
    private Duration margin;
    private boolean interrupts;

    private LockOptions() {}

    /** The service's default TTL, and a wait for as long as it takes. */
    public static LockOptions defaults() {
        return DEFAULTS;
    }

    /** How long the lease lives unless it is extended. */
    public LockOptions ttl(Duration ttl) {
        LockOptions other = copy();
        other.ttl = checked("ttl", ttl);
        return other;
    }

    /** How long to wait in the queue: zero tries once. The call ends a second after it at most, whatever the servers do. */
    public LockOptions waitAtMost(Duration wait) {
        LockOptions other = copy();
        other.wait = checked("waitAtMost", wait);
        return other;
    }

    /** From the grant, for how long the resource stays taken though it is released; at most the TTL. */
    public LockOptions minHold(Duration minHold) {
        LockOptions other = copy();
        other.minHold = checked("minHold", minHold);
        return other;
    }

    /** From the grant, after which the lease is not extended. */
    public LockOptions maxHold(Duration maxHold) {
        LockOptions other = copy();
        other.maxHold = checked("maxHold", maxHold);
        return other;
    }

    /** Takes one of this many slots of the resource, 1 to 32, each with tokens of its own: a semaphore. See {@link Lease#slot}. */
    public LockOptions slots(int slots) {
        LockOptions other = copy();
        other.slots = slots;
        return other;
    }

    /** A public label that the lease shows instead of the client's. */
    public LockOptions holder(String holder) {
        LockOptions other = copy();
        other.holder = Objects.requireNonNull(holder, "holder");
        return other;
    }

    /** A JSON value that the lease shows to all callers, made of Map, List, String, Number and Boolean. */
    public LockOptions metadata(Object metadata) {
        Json.bytes(metadata);
        LockOptions other = copy();
        other.metadata = metadata;
        return other;
    }

    /** How long before the end of validity the lease counts as lost: a tenth of the TTL unless set, half of it at most. */
    public LockOptions margin(Duration margin) {
        LockOptions other = copy();
        other.margin = checked("margin", margin);
        return other;
    }

    /** Interrupts the thread that works under {@code withLock} or {@code elect} when the lease is lost, so that what blocks ends. */
    public LockOptions interruptOnLoss() {
        LockOptions other = copy();
        other.interrupts = true;
        return other;
    }

    LockOptions waitingForever() {
        LockOptions other = copy();
        other.wait = null;
        return other;
    }

    /** These options for one try without a wait, unless they have a wait. */
    LockOptions trying() {
        return wait == null ? waitAtMost(Duration.ZERO) : this;
    }

    boolean hasSlots() {
        return slots != null;
    }

    boolean interrupts() {
        return interrupts;
    }

    Optional<Duration> margin() {
        return Optional.ofNullable(margin);
    }

    /** Whether an acquire waits for another lease to end. */
    boolean waits() {
        return wait == null || !wait.isZero();
    }

    /** When the wait ends that begins now. */
    long waitUntil() {
        return wait == null ? Clock.NEVER : Clock.in(Clock.nanos(wait));
    }

    /** The members of an acquire's body that are of these options. */
    Map<String, Object> members(String clientsHolder) {
        Map<String, Object> members = new LinkedHashMap<>();
        put(members, "ttl_ms", ttl);
        put(members, "min_hold_ms", minHold);
        put(members, "max_hold_ms", maxHold);
        if (slots != null) members.put("slots", slots);
        String label = holder == null ? clientsHolder : holder;
        if (!label.isEmpty()) members.put("holder", label);
        if (metadata != null) members.put("metadata", metadata);
        return members;
    }

    private static void put(Map<String, Object> members, String name, Duration value) {
        if (value != null) members.put(name, Math.min(value.plusNanos(Clock.MILLISECOND - 1).toMillis(), Long.MAX_VALUE));
    }

    private static Duration checked(String name, Duration value) {
        if (value.isNegative()) throw new IllegalArgumentException(name + " must not be negative: " + value);
        return value;
    }

    private LockOptions copy() {
        try {
            return (LockOptions) clone();
        } catch (CloneNotSupportedException e) {
            throw new AssertionError(e);
        }
    }
}
