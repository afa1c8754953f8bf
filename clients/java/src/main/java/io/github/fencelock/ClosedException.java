package io.github.fencelock;

/** The client was closed. */
public final class ClosedException extends FencelockException {
    ClosedException() {
        super("this client is closed");
    }
}
