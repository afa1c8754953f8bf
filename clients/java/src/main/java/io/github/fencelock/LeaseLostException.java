package io.github.fencelock;

/** The lease has ended, or can no longer be kept alive: stop the work, and acquire again. What was written with
 * its token is safe; what comes may be refused. */
public sealed class LeaseLostException extends FencelockException permits StaleTokenException {
    LeaseLostException(String message) {
        super(message);
    }
}
