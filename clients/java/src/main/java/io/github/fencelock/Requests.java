package io.github.fencelock;

import java.net.URLEncoder;
import java.nio.CharBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.security.SecureRandom;
import java.util.Base64;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Makes the requests of a client. */
final class Requests {
    private static final SecureRandom RANDOM = new SecureRandom();
    private static final int KEY_BYTES = 18;

    private Requests() {}

    /** The call of an acquire. All its tries have the same idempotency key, on every server. */
    static Call acquisition(List<String> resources, LockOptions options, String clientsHolder) {
        Map<String, Object> body = new LinkedHashMap<>();
        if (resources.size() == 1) body.put("resource", resources.get(0));
        else body.put("resources", resources);
        body.putAll(options.members(clientsHolder));
        byte[] unwaiting = Json.bytes(body);
        byte[] key = new byte[KEY_BYTES];
        RANDOM.nextBytes(key);
        Map<String, String> headers = Map.of("Idempotency-Key", Base64.getUrlEncoder().encodeToString(key));
        return Call.of("acquire", String.join(", ", resources), "POST", "/locks", headers).with(wait -> {
            if (wait == 0) return unwaiting;
            Map<String, Object> waiting = new LinkedHashMap<>(body);
            waiting.put("wait_ms", wait);
            return Json.bytes(waiting);
        });
    }

    static Call breaking(String resource, Map<String, Object> body) {
        encoded(resource); // refuses half a surrogate pair
        return Call.of("break", resource, "POST", "/breaks", Map.of()).with(body);
    }

    static Call guarded(String operation, Lease lease, String method) {
        Call call = ofResource(operation, lease.resource(), method, "/guarded/");
        Map<String, String> headers = new LinkedHashMap<>(call.headers());
        headers.put("Fencing-Token", Long.toString(lease.token()));
        if (!lease.proof().isEmpty()) headers.put("Fencing-Proof", lease.proof());
        return Call.of(operation, lease.resource(), method, call.path(), headers);
    }

    /** A call with the resource in its path. A header repeats it, because proxies may rewrite the path. */
    static Call ofResource(String operation, String resource, String method, String path) {
        String name = encoded(resource);
        return Call.of(operation, resource, method, path + name, Map.of("Fencelock-Resource", name));
    }

    /** A resource's name as a part of a path or a query. */
    static String encoded(String name) {
        try {
            StandardCharsets.UTF_8.newEncoder().encode(CharBuffer.wrap(name));
        } catch (CharacterCodingException e) {
            throw new IllegalArgumentException("a resource must be valid Unicode, without half a surrogate pair");
        }
        return URLEncoder.encode(name, StandardCharsets.UTF_8).replace("+", "%20");
    }
}
