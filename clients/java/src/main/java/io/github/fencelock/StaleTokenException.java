package io.github.fencelock;

/**
 * A guard refused the token, because it has seen a larger one. Nothing was written. Never repeat the write with the same token.
 *
 * @serial exclude
 */
public final class StaleTokenException extends LeaseLostException {
    private final long presented;
    private final long highest;

    StaleTokenException(String message, long presented, long highest) {
        super(message);
        this.presented = presented;
        this.highest = highest;
    }

    /** {@return the token that was refused; 0 if it is not known} */
    public long presented() {
        return presented;
    }

    /** {@return the highest token that the guard has seen; 0 if it is not known} */
    public long highest() {
        return highest;
    }
}
