package io.github.fencelock;

/**
 * What is done under a lease.
 *
 * @param <T> what it returns
 * @param <X> what it throws
 */
@FunctionalInterface
public interface Work<T, X extends Exception> {
    /**
     * Does it.
     *
     * @param lease the lease
     * @return what withLock returns
     * @throws X if it fails
     */
    T run(Lease lease) throws X;
}
