package io.github.fencelock;

import java.util.Map;

/**
 * Whether the service can grant locks, as {@link FencelockClient#health} found it.
 *
 * @param ready whether at least one server can grant locks: the client uses such a server
 * @param servers the URL of each server, with "" if it can grant locks, else the reason why not
 */
public record Health(boolean ready, Map<String, String> servers) {}
