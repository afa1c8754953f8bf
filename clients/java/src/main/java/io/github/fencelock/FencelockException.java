package io.github.fencelock;

/** Any failure of a call. Its message says what happened, to what, and what to do. */
public sealed class FencelockException extends RuntimeException
        permits ClosedException, DeniedException, HeldException, LeaseLostException, RefusedException, UnavailableException {
    private String kind = "";
    private int status;
    private String resource = "";
    private String url = "";
    private String requestId = "";

    FencelockException(String message) {
        super(message);
    }

    /** The problem type of the service's response ("lock-held", "no-quorum", …); "" if there was no response. */
    public String kind() {
        return kind;
    }

    /** The HTTP status of the response; 0 if there was no response. */
    public int status() {
        return status;
    }

    /** What the call was about; several have ", " between them. */
    public String resource() {
        return resource;
    }

    /** The server that was asked last; "" if none was. */
    public String url() {
        return url;
    }

    /** The X-Request-Id of its answer; "" without one. */
    public String requestId() {
        return requestId;
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

    FencelockException from(String url, String requestId) {
        this.url = url;
        this.requestId = requestId;
        return this;
    }
}
