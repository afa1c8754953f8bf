# The service: one static program, on an image with nothing else in it.

FROM golang:1.26-bookworm AS build
WORKDIR /src
# Dependencies first: they change less often than the code.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
# The version comes from git (go version -m, fencelock version).
RUN CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o /out/fencelock ./cmd/fencelock
RUN mkdir -p /out/data

FROM gcr.io/distroless/static:nonroot
COPY --from=build /out/fencelock /fencelock
# The embedded file, for a container that is given neither Redis nor Postgres.
COPY --from=build --chown=65532:65532 /out/data /data
WORKDIR /data
VOLUME /data
USER 65532:65532
# It listens on 127.0.0.1 until FENCELOCK_LISTEN says 0.0.0.0:8080, which needs
# FENCELOCK_ACCESS_FILE (docs/how-to/access.md), or FENCELOCK_INSECURE=true.
EXPOSE 8080
# A server that waits for the leases of an earlier life to end is not ready for up
# to the longest lease (FENCELOCK_MAX_TTL, 60 s), and not sick either.
HEALTHCHECK --interval=5s --timeout=3s --start-period=120s --retries=3 \
	CMD ["/fencelock", "healthcheck"]
ENTRYPOINT ["/fencelock"]
CMD ["serve"]
