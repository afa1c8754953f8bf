package io.github.fencelock;

import java.util.Map;

/**
 * Whether the service can grant locks, as {@link FencelockClient#health} found it.
 *
 * @param ready whether one server at least can: the client uses that one
 * @param servers the URL of each server, with "" if it can, else why not
 */
public record Health(boolean ready, Map<String, String> servers) {}
