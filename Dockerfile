# syntax=docker/dockerfile:1
# The image by any standard builder: docker buildx build --platform linux/amd64,linux/arm64 . `make image` makes the same
# without one. The builder runs on the machine's own platform and cross-compiles.
FROM --platform=$BUILDPLATFORM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY access access
COPY api api
COPY cmd cmd
COPY controllers controllers
COPY destination destination
COPY dispatcher dispatcher
COPY ingest ingest
COPY installer installer
COPY keyring keyring
COPY migrations migrations
COPY signature signature
COPY store store
ARG VERSION=dev TARGETOS TARGETARCH
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /postrider ./cmd/postrider

# Root certificates, a user that is not root, and no shell.
FROM gcr.io/distroless/static-debian12:nonroot
ARG VERSION=dev REVISION=
LABEL org.opencontainers.image.title=postrider \
      org.opencontainers.image.description="Webhook delivery for Kubernetes" \
      org.opencontainers.image.source=https://github.com/postrider/postrider \
      org.opencontainers.image.licenses=Apache-2.0 \
      org.opencontainers.image.version=$VERSION \
      org.opencontainers.image.revision=$REVISION
COPY --from=build /postrider /postrider
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["/postrider"]
