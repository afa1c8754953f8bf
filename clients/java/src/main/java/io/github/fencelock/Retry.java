package io.github.fencelock;

import java.time.Duration;

/**
 * Reports that a try of a call has failed and that the call will be repeated.
 *
 * @param error the error of the last try
 * @param tries the number of tries so far
 * @param failing for how long the call has failed without a success between
 * @param pause the time before the next try
 */
public record Retry(UnavailableException error, int tries, Duration failing, Duration pause) {}
