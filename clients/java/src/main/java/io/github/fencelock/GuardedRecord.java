package io.github.fencelock;

import java.util.Map;

/**
 * A record of the service that refuses stale tokens.
 *
 * @param highestToken the highest token that it has seen; 0 for none
 * @param value a JSON value of Map, List, String, Number and Boolean; null before the first write, and after a delete
 * @param version the number of accepted writes
 */
public record GuardedRecord(String resource, long highestToken, Object value, long version) {
    /**
     * A write or a claim of a record.
     *
     * @param highest the highest token that the record had seen before; 0 for none
     * @param kind "write" or "claim"
     * @param at the time by the storage's clock, as text for people
     */
    public record Attempt(long token, long highest, String kind, boolean accepted, long version, String at) {
        static Attempt of(Map<String, Object> attempt) {
            return new Attempt(Json.number(attempt, "fencing_token"), Json.number(attempt, "highest_token"), Json.text(attempt, "kind"),
                    Boolean.TRUE.equals(attempt.get("accepted")), Json.number(attempt, "version"), Json.text(attempt, "at"));
        }
    }

    static GuardedRecord of(Map<String, Object> record) {
        return new GuardedRecord(Json.text(record, "resource"), Json.number(record, "highest_token"), record.get("value"), Json.number(record, "version"));
    }
}
