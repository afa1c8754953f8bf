package io.github.fencelock;

/**
 * What is done under a lease, and returns nothing. {@link Lease#current} has the lease.
 *
 * @param <X> what it throws
 */
@FunctionalInterface
public interface Task<X extends Exception> {
    /**
     * Does it.
     *
     * @throws X if it fails
     */
    void run() throws X;
}
