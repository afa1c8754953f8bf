package io.github.fencelock;

/** The service requires a credential, does not accept this one, or does not allow it this. */
public final class DeniedException extends FencelockException {
    DeniedException(String message) {
        super(message);
    }
}
