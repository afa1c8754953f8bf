package io.github.fencelock;

/**
 * Work under a lease that returns nothing. {@link Lease#current} has the lease.
 *
 * @param <X> what it throws
 */
@FunctionalInterface
public interface Task<X extends Exception> {
    /**
     * Does the work.
     *
     * @throws X if it fails
     */
    void run() throws X;
}
