package io.github.fencelock;

/**
 * The lease to break does not hold the resource: another one does. Nothing was changed.
 *
 * @serial exclude
 */
public final class OtherLeaseException extends RefusedException {
    private final String holder;
    private final long token;

    OtherLeaseException(String message, String holder, long token) {
        super(message);
        this.holder = holder;
        this.token = token;
    }

    /** {@return the label of the lease that holds the resource; "" if it has none} */
    public String holder() {
        return holder;
    }

    /** {@return its fencing token} */
    public long token() {
        return token;
    }
}
