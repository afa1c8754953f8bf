package io.github.fencelock;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.stream.IntStream;

/** How to acquire a lease. The service's default applies to a value that is not set. Options are immutable: each method returns changed ones. */
public final class LockOptions implements Cloneable {
    private static final LockOptions DEFAULTS = new LockOptions();
    private static final Duration SHORTEST_TTL = Duration.ofMillis(100);
    private static final Duration LONGEST_TTL = Duration.ofHours(24);
    private static final int MAX_SLOTS = 32;
    private static final int MAX_RESOURCES = 16;
    private static final int MAX_BYTES = 256;

    private Duration ttl;
    private Duration wait; // null: for as long as it takes
    private Duration patience; // null: the client's
    private Duration minHold;
    private Duration maxHold;
    private Integer slots;
    private String holder;
    private Object metadata;
    private Duration margin;
    private boolean interrupts;
    private boolean uninterruptible;

    private LockOptions() {}

    /**
     * The service's default TTL, and a wait for as long as it takes.
     *
     * @return the options
     */
    public static LockOptions defaults() {
        return DEFAULTS;
    }

    /**
     * Sets how long the lease lives unless it is extended.
     *
     * @param ttl 100 ms to 24 h
     * @return the other options
     */
    public LockOptions ttl(Duration ttl) {
        if (ttl.compareTo(SHORTEST_TTL) < 0 || ttl.compareTo(LONGEST_TTL) > 0) throw new IllegalArgumentException("ttl must be from 100 ms to 24 h: " + ttl);
        LockOptions other = copy();
        other.ttl = ttl;
        return other;
    }

    /**
     * Sets how long the call waits in the queue; zero tries once. The call ends at most a second after its wait (or its patience, if that is longer),
     * whatever the servers do.
     *
     * @param wait 0 or more
     * @return the other options
     */
    public LockOptions waitAtMost(Duration wait) {
        LockOptions other = copy();
        other.wait = checked("waitAtMost", wait);
        return other;
    }

    /**
     * Sets for how long this acquire is repeated while no server responds or none has a quorum, instead of the client's patience. With it a call that
     * does not wait in the queue survives a restart of the service. The call ends at most a second after the wait or the patience, whichever is longer.
     *
     * @param patience 0 or more
     * @return the other options
     */
    public LockOptions patience(Duration patience) {
        LockOptions other = copy();
        other.patience = checked("patience", patience);
        return other;
    }

    /**
     * Sets for how long after the grant the resource stays taken even if the lease is released; at most the TTL.
     *
     * @param minHold 0 or more
     * @return the other options
     */
    public LockOptions minHold(Duration minHold) {
        LockOptions other = copy();
        other.minHold = checked("minHold", minHold);
        return other;
    }

    /**
     * Sets for how long after the grant the lease may be held: no extension makes it last longer.
     *
     * @param maxHold the TTL or more; 0 for no limit except the service's
     * @return the other options
     */
    public LockOptions maxHold(Duration maxHold) {
        LockOptions other = copy();
        other.maxHold = checked("maxHold", maxHold);
        return other;
    }

    /**
     * Takes one of several slots of the resource: a semaphore. Each slot has tokens of its own. See {@link Lease#slot}.
     *
     * @param slots how many slots there are, 1 to 32
     * @return the other options
     */
    public LockOptions slots(int slots) {
        if (slots < 1 || slots > MAX_SLOTS) throw new IllegalArgumentException("slots must be 1 to " + MAX_SLOTS + ": " + slots);
        LockOptions other = copy();
        other.slots = slots;
        return other;
    }

    /**
     * Sets a public label that the lease shows instead of the client's.
     *
     * @param holder the label, 256 bytes at most
     * @return the other options
     */
    public LockOptions holder(String holder) {
        LockOptions other = copy();
        other.holder = checkedText("holder", Objects.requireNonNull(holder, "holder"));
        return other;
    }

    /**
     * Sets a JSON value that the lease shows to all callers, made of Map, List, String, Number and Boolean.
     *
     * @param metadata the value
     * @return the other options
     */
    public LockOptions metadata(Object metadata) {
        Json.bytes(metadata);
        LockOptions other = copy();
        other.metadata = metadata;
        return other;
    }

    /**
     * Sets how long before the end of its validity the lease counts as lost: by default a tenth of the TTL, at most half of it.
     *
     * @param margin 0 or more
     * @return the other options
     */
    public LockOptions margin(Duration margin) {
        LockOptions other = copy();
        other.margin = checked("margin", margin);
        return other;
    }

    /**
     * When the lease is lost, interrupts the thread that works under {@code withLock} or {@code elect}, so that a blocking call of the work ends.
     *
     * @return the other options
     */
    public LockOptions interruptOnLoss() {
        LockOptions other = copy();
        other.interrupts = true;
        return other;
    }

    /** Throws IllegalArgumentException for values that no server accepts, before anything is sent. */
    void check(List<String> resources) {
        if (resources.isEmpty() || resources.size() > MAX_RESOURCES) throw new IllegalArgumentException("name 1 to " + MAX_RESOURCES + " resources, not " + resources.size());
        if (new HashSet<>(resources).size() < resources.size()) throw new IllegalArgumentException("a resource is named twice");
        if (slots != null && resources.size() > 1) throw new IllegalArgumentException("slots are of one resource");
        for (String resource : resources) {
            if (resource.isEmpty()) throw new IllegalArgumentException("the name of a resource must not be empty");
            Requests.encoded(resource);
            checkedText("the name of a resource", resource);
        }
        if (ttl == null) return;
        if (minHold != null && minHold.compareTo(ttl) > 0) throw new IllegalArgumentException("minHold must be at most the ttl: " + minHold + ", " + ttl);
        if (maxHold != null && !maxHold.isZero() && maxHold.compareTo(ttl) < 0) throw new IllegalArgumentException("maxHold must be at least the ttl: " + maxHold + ", " + ttl);
    }

    private static String checkedText(String what, String text) {
        boolean right = text.getBytes(StandardCharsets.UTF_8).length <= MAX_BYTES && text.chars().noneMatch(Character::isISOControl);
        if (!right) throw new IllegalArgumentException(what + " must have at most " + MAX_BYTES + " bytes, and no control characters");
        return text;
    }

    LockOptions waitingForever() {
        LockOptions other = copy();
        other.wait = null;
        return other;
    }

    /** These options for an acquire that continues even if its thread is interrupted. */
    LockOptions uninterruptible() {
        LockOptions other = copy();
        other.uninterruptible = true;
        return other;
    }

    boolean interruptible() {
        return !uninterruptible;
    }

    /** These options for one try without a wait, unless they have a wait. */
    LockOptions trying() {
        return wait == null ? waitAtMost(Duration.ZERO) : this;
    }

    boolean hasSlots() {
        return slots != null;
    }

    /** The names of all slots of a resource. */
    List<String> slotsOf(String resource) {
        return IntStream.rangeClosed(1, slots).mapToObj(n -> resource + "#slot" + n).toList();
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

    /** The time of Clock at which a wait ends that begins now. */
    long waitUntil() {
        return wait == null ? Clock.NEVER : Clock.in(Clock.nanos(wait));
    }

    /** The time of Clock at which an acquire that begins now has to end, whatever the servers do. */
    long deadline() {
        if (wait == null) return Clock.NEVER;
        long longest = Math.max(Clock.nanos(wait), patience == null ? 0 : Clock.nanos(patience));
        return Math.min(Clock.NEVER, Clock.in(longest) + Tries.GRACE);
    }

    Optional<Duration> patience() {
        return Optional.ofNullable(patience);
    }

    /** The fields of an acquire's body that these options set. */
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
