package io.github.fencelock;

/** Any other refusal. The same request would be refused again. */
public sealed class RefusedException extends FencelockException permits OtherLeaseException {
    RefusedException(String message) {
        super(message);
    }
}
