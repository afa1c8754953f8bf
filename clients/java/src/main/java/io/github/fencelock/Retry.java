package io.github.fencelock;

import java.time.Duration;

/**
 * A call that failed and is repeated.
 *
 * @param error of the last try
 * @param tries so far
 * @param failing the time since the first failure that still lasts
 * @param pause the time before the next try
 */
public record Retry(UnavailableException error, int tries, Duration failing, Duration pause) {}
