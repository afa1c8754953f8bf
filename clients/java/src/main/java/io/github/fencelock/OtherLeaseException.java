package io.github.fencelock;

/** The lease to break does not hold the resource: another one does. Nothing was changed. */
public final class OtherLeaseException extends RefusedException {
    private final String holder;
    private final long token;

    OtherLeaseException(String message, String holder, long token) {
        super(message);
        this.holder = holder;
        this.token = token;
    }

    /** The label of the lease that holds the resource; "" if it has none. */
    public String holder() {
        return holder;
    }

    /** Its fencing token. */
    public long token() {
        return token;
    }
}
