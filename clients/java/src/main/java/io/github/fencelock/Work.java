package io.github.fencelock;

/** What is done under a lease. */
@FunctionalInterface
public interface Work<T, X extends Exception> {
    T run(Lease lease) throws X;
}
