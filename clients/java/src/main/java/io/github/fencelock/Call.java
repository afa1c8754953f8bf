package io.github.fencelock;

import java.util.Map;
import java.util.function.LongFunction;

/**
 * A request, with all its tries.
 *
 * @param operation the verb for messages: acquire, extend, …
 * @param resource the resource, several with ", " between them; "" if it is not known
 * @param body makes the body, given the milliseconds that the request may wait in the queue; null for no body
 * @param breaks for a break, the fencing token of the lease to end; 0 for any other call
 * @param once whether the call must not be sent again after a try that may have taken effect
 * @param quiet whether observers do not hear of its retries, because no caller waits for the call
 */
record Call(String operation, String resource, String method, String path, Map<String, String> headers,
        LongFunction<byte[]> body, long breaks, boolean once, boolean quiet) {

    static Call of(String operation, String resource, String method, String path, Map<String, String> headers) {
        return new Call(operation, resource, method, path, headers, null, 0, false, false);
    }

    Call with(Object json) {
        byte[] bytes = Json.bytes(json);
        return with(wait -> bytes);
    }

    Call with(LongFunction<byte[]> body) {
        return new Call(operation, resource, method, path, headers, body, breaks, once, quiet);
    }

    Call breaking(long token) {
        return new Call(operation, resource, method, path, headers, body, token, once, quiet);
    }

    Call sentOnce() {
        return new Call(operation, resource, method, path, headers, body, breaks, true, quiet);
    }

    /** The call that ends what this call may have got after its caller gave it up: a lease, or a place in the queue. */
    Call cancelled() {
        return new Call("cancel", resource, method, "/cancel", headers, body, 0, false, true);
    }

    /** The operation and its resource, for messages. */
    String what() {
        return resource.isEmpty() ? operation : operation + " " + Errors.shown(resource);
    }
}
