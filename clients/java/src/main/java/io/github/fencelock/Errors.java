package io.github.fencelock;

import java.time.Duration;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;

/** Makes exceptions. */
final class Errors {
    private static final Set<String> HELD = Set.of("lock-held", "wait-timeout");
    private static final Set<String> LOST = Set.of("lease-not-held", "max-hold-reached");
    private static final Set<Integer> AGAIN = Set.of(408, 429, 500, 502, 503, 504);
    private static final Pattern UNPRINTABLE = Pattern.compile("[\\p{C}\\p{Zl}\\p{Zp}]");

    private Errors() {}

    /** A name for a message, with escapes for characters that do not print or that change the direction of the text. */
    static String shown(String name) {
        return UNPRINTABLE.matcher(name).replaceAll(match -> String.format("\\\\u{%x}", match.group().codePointAt(0)));
    }

    static UnavailableException unavailable(Call call, String why) {
        return unavailable(call.what(), call.resource(), why);
    }

    static UnavailableException unavailable(String what, String resource, String why) {
        return (UnavailableException) new UnavailableException(what + ": " + why, Duration.ZERO).about(resource);
    }

    static LeaseLostException lost(String resource, String why) {
        return (LeaseLostException) new LeaseLostException("the lease of " + shown(resource) + " is lost: " + why).about(resource);
    }

    static RefusedException foreign(Call call, String what) {
        return (RefusedException) new RefusedException(call.what() + ": " + what + " is not the lock service's: is the address right?").about(call.resource());
    }

    static RefusedException redirected(Call call, int status, String target) {
        String message = call.what() + ": a redirect to " + target + ", which is not followed: is the address right? (" + status + ")";
        return (RefusedException) new RefusedException(message).about(call.resource()).answered("", status);
    }

    /** The exception of a refusal, from its problem document. The document is empty if the response did not come from the service. */
    static FencelockException refusal(Call call, int status, Map<String, Object> problem, Optional<String> retryAfter) {
        String kind = kind(Json.text(problem, "type"));
        String message = call.what() + ": " + said(status, kind, problem);
        String resource = Json.text(problem, "resource");
        return typed(kind, status, message, problem, retryAfter).about(resource.isEmpty() ? call.resource() : resource).answered(kind, status);
    }

    private static FencelockException typed(String kind, int status, String message, Map<String, Object> problem, Optional<String> retryAfter) {
        String holder = Json.text(problem, "holder");
        long token = Json.number(problem, "fencing_token");
        if (HELD.contains(kind)) return new HeldException(message, holder, token, Duration.ofMillis(Json.number(problem, "remaining_ms")));
        if (kind.equals("other-lease")) return new OtherLeaseException(message, holder, token);
        if (kind.equals("stale-token")) return new StaleTokenException(message, Json.number(problem, "presented"), Json.number(problem, "highest_token"));
        if (LOST.contains(kind)) return new LeaseLostException(message);
        if (status == 401 || status == 403) return new DeniedException(message);
        if (!AGAIN.contains(status)) return new RefusedException(message);
        return new UnavailableException(message, retryAfter.filter(s -> s.matches("\\d{1,6}")).map(s -> Duration.ofSeconds(Long.parseLong(s))).orElse(Duration.ZERO));
    }

    private static String kind(String type) {
        int at = type.indexOf("/problems/");
        return at < 0 ? "" : type.substring(at + "/problems/".length());
    }

    private static String said(int status, String kind, Map<String, Object> problem) {
        String title = Json.text(problem, "title");
        String detail = Json.text(problem, "detail") + Json.text(problem, "reason"); // a problem has a detail, the response of /readyz a reason
        if (status == 404 && kind.isEmpty() && title.isEmpty()) return "the 404 did not come from fencelock: check host, port and path";
        return (title.isEmpty() ? "refused" : title) + " (" + status + ")" + (detail.isEmpty() ? "" : ": " + detail);
    }
}
