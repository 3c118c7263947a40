# One instance of Fencepost.
#
#   docker build -t fencepost .
#   docker run -p 7070:7070 --read-only --cap-drop ALL --security-opt no-new-privileges \
#     -v fencepost-data:/var/lib/fencepost --stop-timeout 50 \
#     -e FENCEPOST__AUTH__TOKENS='[{"name":"me","token":"choose-one","scopes":["admin"]}]' \
#     -v /etc/fencepost/tls:/tls:ro \
#     -e FENCEPOST__SERVER__TLS_CERTIFICATE=/tls/tls.crt -e FENCEPOST__SERVER__TLS_KEY=/tls/tls.key \
#     -e FENCEPOST_URL=https://NAME:7070 -e FENCEPOST_CA=/tls/ca.crt --add-host NAME:127.0.0.1 fencepost
#
# A container listens on all of its addresses, so at least one token must be configured, and a certificate: without
# them the daemon stops at once with exit status 78 and says so. FENCEPOST__SERVER__INSECURE=true takes the place of the
# certificate where a proxy in front of the container has one. FENCEPOST_URL and FENCEPOST_CA are for the health check,
# which verifies the certificate: NAME is a name in it. The daemon's ledger is a SQLite file in the volume unless
# FENCEPOST_DATABASE_URL names a PostgreSQL. --stop-timeout leaves it its 30 seconds to drain, and 20 to leave the cluster; the
# engine's own 10 would cut them short. It writes to its volume alone: its root may be read-only.
#
# The image's configuration file is deploy/container.toml. A file that is mounted over it, at /etc/fencepost/fencepost.toml, or
# that FENCEPOST_CONFIG or --config names, takes its place, and sets server.listen and ledger.url itself.
#
# A node runs without the image's health check, which asks a daemon in the container. --stop-timeout leaves it the 45 seconds
# in which its attempts finish or are stopped (with --drain-at-most 20 more than that):
#
#   docker run --no-healthcheck --read-only --cap-drop ALL --security-opt no-new-privileges -v "$PWD/work:/work:ro" \
#     -v /etc/fencepost/tls/ca.crt:/ca.crt:ro -e FENCEPOST_CA=/ca.crt \
#     --stop-timeout 50 -e FENCEPOST_TOKEN=choose-one fencepost node --url https://NAME:7070 --exec /work
#
# The base images are named by exact versions. To pin them by digest as well, give the digests that your registry
# verified: --build-arg BUILD_IMAGE=rust:1.95.0-slim-bookworm@sha256:… --build-arg BASE_IMAGE=debian:12.12-slim@sha256:…

ARG BUILD_IMAGE=rust:1.95.0-slim-bookworm
ARG BASE_IMAGE=debian:12.12-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY . .
# The binary is taken out, since a cache mount is no part of the image, and without its line tables, which
# are most of its size.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked -p daemon \
    && strip --strip-debug -o /usr/local/bin/fencepost target/dist/fencepost

FROM ${BASE_IMAGE}
# The certificates are for PostgreSQL over TLS. Tini is the first process: as a node's container runs commands, somebody has to reap
# what they leave behind.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates tini \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --system --gid 10001 fencepost \
    && useradd --uid 10001 --gid fencepost --no-create-home --home-dir /var/lib/fencepost \
       --shell /usr/sbin/nologin fencepost \
    && install -d -o fencepost -g fencepost -m 0700 /var/lib/fencepost
COPY --from=build /usr/local/bin/fencepost /usr/local/bin/fencepost
# For reading: every key.
COPY config/fencepost.toml /usr/share/fencepost/fencepost.toml
# In a file, and in no other variable: a variable would override the file that somebody mounts, and containers that share a
# PostgreSQL by that file would each have a ledger of their own.
COPY deploy/container.toml /etc/fencepost/fencepost.toml
ENV FENCEPOST_CONFIG=/etc/fencepost/fencepost.toml
# By number, so that an orchestrator can see that it is not root.
USER 10001:10001
WORKDIR /var/lib/fencepost
VOLUME /var/lib/fencepost
EXPOSE 7070
STOPSIGNAL SIGTERM
# Whether the process answers, not whether its ledger does: a restart would not mend the ledger. Where
# another port is listened on, or TLS is spoken, FENCEPOST_URL tells this check. It is not for nodes: see above.
HEALTHCHECK --interval=10s --timeout=5s --start-period=40s --retries=3 CMD ["fencepost", "health"]
ENTRYPOINT ["tini", "--", "fencepost"]
CMD ["serve"]
