# The service: one static program, on an image with nothing else in it.

# Pinned by digest, each an index of several platforms. make compose-check pulls them
# where it can, and puts others in their place where it cannot.
ARG BUILD_IMAGE=golang:1.26.6-bookworm@sha256:116d58cbd88c1297624acc6e967a060012422bacf9930927e23fb719189c6f36
ARG BASE_IMAGE=gcr.io/distroless/static-debian13:nonroot@sha256:e2e927ec666bae08560abb3c55d0659eceabb657f56b6782ab500a9fc7f555e3

FROM ${BUILD_IMAGE} AS build
# For a build behind a proxy, or without git's data (-buildvcs=false).
ARG GOPROXY
ARG GOFLAGS
WORKDIR /src
# Dependencies first: they change less often than the code.
COPY go.mod go.sum go.work go.work.sum ./
COPY api/wire/go.mod api/wire/
COPY client/go.mod client/
COPY fencing/go.mod fencing/
COPY migrations/go.mod migrations/
COPY storage/mysqlguard/go.mod storage/mysqlguard/go.sum storage/mysqlguard/
COPY storage/pgguard/go.mod storage/pgguard/go.sum storage/pgguard/
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# The version comes from git (go version -m, fencelock version).
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
	CGO_ENABLED=0 go build -trimpath -tags grpcnotrace -ldflags '-s -w' -o /out/fencelock ./cmd/fencelock && \
	mkdir -p /out/data /out/licenses && cp LICENSE /out/licenses && go run ./internal/notices /out/fencelock >/out/licenses/THIRD_PARTY_NOTICES

FROM ${BASE_IMAGE}
ARG VERSION
ARG REVISION
LABEL org.opencontainers.image.title="fencelock" \
	org.opencontainers.image.description="A lock service with fencing tokens" \
	org.opencontainers.image.source="https://github.com/fencelock/fencelock" \
	org.opencontainers.image.documentation="https://github.com/fencelock/fencelock/tree/main/docs" \
	org.opencontainers.image.licenses="Apache-2.0" \
	org.opencontainers.image.version="${VERSION}" \
	org.opencontainers.image.revision="${REVISION}"
COPY --from=build /out/fencelock /fencelock
COPY --from=build /out/licenses /licenses
# The embedded file, for a container that is given neither Redis nor Postgres. Keep it with
# -v fencelock:/data. No VOLUME is declared: that would leave a volume without a name behind
# every container, those that keep nothing here included.
COPY --from=build --chown=65532:65532 /out/data /data
WORKDIR /data
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
