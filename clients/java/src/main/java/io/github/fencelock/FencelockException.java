package io.github.fencelock;

/**
 * Any failure of a call. Its message says what happened, to what, and what to do.
 *
 * @serial exclude
 */
public sealed class FencelockException extends RuntimeException
        permits ClosedException, DeniedException, HeldException, LeaseLostException, RefusedException, UnavailableException {
    private String kind = "";
    private int status;
    private String resource = "";
    private String url = "";
    private String requestId = "";
    private boolean timedOut;

    FencelockException(String message) {
        super(message);
    }

    /** {@return the problem type of the service's response ("lock-held", "no-quorum", …); "" if there was no response} */
    public String kind() {
        return kind;
    }

    /** {@return the HTTP status of the response; 0 if there was no response} */
    public int status() {
        return status;
    }

    /** {@return the resource of the call; several have ", " between them} */
    public String resource() {
        return resource;
    }

    /** {@return the server that was asked last; "" if none was} */
    public String url() {
        return url;
    }

    /** {@return the X-Request-Id of the response; "" if it had none} */
    public String requestId() {
        return requestId;
    }

    /**
     * Whether the call ended because its wait was over: that of {@link LockOptions#waitAtMost}, or of a lock's tryLock. A HeldException then
     * names the holder for which the call waited, and an UnavailableException says that no server could serve the call at the end. It is false for a
     * call that does not wait, and for one that ended before, because the client's patience was over.
     *
     * @return whether the wait ended the call
     */
    public boolean timedOut() {
        return timedOut;
    }

    FencelockException about(String resource) {
        this.resource = resource;
        return this;
    }

    FencelockException answered(String kind, int status) {
        this.kind = kind;
        this.status = status;
        return this;
    }

    FencelockException timedOut(boolean timedOut) {
        this.timedOut = timedOut;
        return this;
    }

    FencelockException from(String url, String requestId) {
        this.url = url;
        this.requestId = requestId;
        return this;
    }
}
