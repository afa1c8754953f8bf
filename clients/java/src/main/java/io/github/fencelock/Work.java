package io.github.fencelock;

/**
 * Work under a lease.
 *
 * @param <T> what it returns
 * @param <X> what it throws
 */
@FunctionalInterface
public interface Work<T, X extends Exception> {
    /**
     * Does the work.
     *
     * @param lease the lease
     * @return the value that withLock returns
     * @throws X if it fails
     */
    T run(Lease lease) throws X;
}
