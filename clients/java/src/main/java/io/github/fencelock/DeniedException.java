package io.github.fencelock;

/** The service requires a credential, does not accept the one that it got, or does not allow this caller the request. */
public final class DeniedException extends FencelockException {
    DeniedException(String message) {
        super(message);
    }
}
