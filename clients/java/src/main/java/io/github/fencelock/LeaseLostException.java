package io.github.fencelock;

/** The lease has ended, or can no longer be kept alive: stop the work, and acquire again. Earlier writes with
 * its token are safe; later ones may be refused. */
public sealed class LeaseLostException extends FencelockException permits StaleTokenException {
    LeaseLostException(String message) {
        super(message);
    }
}
