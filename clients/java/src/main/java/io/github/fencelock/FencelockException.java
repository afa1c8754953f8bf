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

    /** {@return what the call was about; several have ", " between them} */
    public String resource() {
        return resource;
    }

    /** {@return the server that was asked last; "" if none was} */
    public String url() {
        return url;
    }

    /** {@return the X-Request-Id of its answer; "" without one} */
    public String requestId() {
        return requestId;
    }

    /**
     * Whether the call ended because its wait did, the one of {@link LockOptions#waitAtMost} or of a lock's tryLock. A HeldException then
     * has the holder that was waited for, and an UnavailableException says that no server could serve the call at the end. False for a
     * call that does not wait, and where the client's patience ended first.
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
