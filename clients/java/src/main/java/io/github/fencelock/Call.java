package io.github.fencelock;

import java.util.Map;
import java.util.function.LongFunction;

/**
 * A request, with all its tries.
 *
 * @param operation what it does: acquire, extend, …
 * @param resource what it is about; "" if that is not known
 * @param body the body, made of the milliseconds that the request may wait in the queue; null for none
 * @param breaks the fencing token of the lease that it breaks; 0 for any other call
 * @param once it is not sent again after a try that may have taken effect
 * @param quiet no caller waits for it: its retries are not observed
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

    /** The call that ends all that this one, given up, may have been granted. */
    Call cancelled() {
        return new Call("cancel", resource, method, "/cancel", headers, body, 0, false, true);
    }

    /** For messages. */
    String what() {
        return resource.isEmpty() ? operation : operation + " " + Errors.shown(resource);
    }
}
