# syntax=docker/dockerfile:1
#
# Nonet in a container.
#
#   docker build -t nonet .                     with npx and uvx, which most servers that are programs start through
#   docker build -t nonet --target slim .       the gateway alone: for servers at an address
#
# Over HTTP, on port 8931:
#
#   docker run --init -p 127.0.0.1:8931:8931 \
#     -v "$PWD/servers.toml:/etc/nonet/servers.toml:ro" -v nonet-data:/data nonet
#
# On standard input and output, as a client starts it:
#
#   docker run --init -i --rm -v "$PWD/servers.toml:/etc/nonet/servers.toml:ro" -v nonet-data:/data nonet serve
#
# Mount:
#   /etc/nonet/servers.toml   the configuration (read only is enough). Without it Nonet says so and ends.
#   /data                     the home of the user `nonet` (10001): kept results and tasks, what searches led to, vectors,
#                             and what npx and uvx download. A named volume has the right owner; a folder of the host has
#                             to be writable for 10001. Without it all of this is gone with the container.
#   whatever the servers are to work on, such as -v "$PWD:/project"; paths in servers.toml are those inside of the container.
#
# Variables that servers.toml names as ${TOKEN} come with `-e TOKEN`.
#
# Over HTTP it listens on all addresses of the container, so only requests whose Host is localhost or 127.0.0.1 are answered: that
# fits the port above. For another name (a proxy in front, another container) list it in servers.toml, else the answer is 403:
#
#   [gateway]
#   allowed_hosts = ["nonet.example.com", "nonet"]
#
# Without `tokens` in servers.toml it does not start, because anybody who reaches the port would come in. List tokens, and put a
# proxy with TLS in front; or publish the port to the loopback address only, as above, and say so in servers.toml:
#
#   [gateway]
#   allow_without_tokens = true
#
# --init: servers may leave processes behind that somebody has to clear away. The health check asks /healthz; with an image of
# the OCI format, podman leaves it out.

FROM rust:1-slim-trixie AS build
WORKDIR /src
# What `nonet --version` says; .git is not copied.
ARG NONET_COMMIT=
COPY . .
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    cargo build --profile dist --locked --bin nonet && cp target/dist/nonet /usr/local/bin/nonet

# The program for each processor, at linux/ARCH/nonet. A release puts the programs of its archives here, so that nothing is
# compiled on an emulated processor: `--build-context program=target/packages/image`.
FROM scratch AS program
ARG TARGETARCH
COPY --from=build /usr/local/bin/nonet /linux/$TARGETARCH/nonet

# The gateway and the certificates that it checks https servers by.
FROM debian:trixie-slim AS slim
ARG TARGETARCH
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates \
    && rm -rf /var/lib/apt/lists/* \
    && groupadd --gid 10001 nonet \
    && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin nonet \
    && install -d -o 10001 -g 10001 /data
COPY --chmod=755 packaging/image/healthy /usr/local/bin/nonet-healthy
COPY --chmod=755 --from=program /linux/$TARGETARCH/nonet /usr/local/bin/nonet
ENV HOME=/data NONET_CONFIG=/etc/nonet/servers.toml
USER 10001:10001
WORKDIR /data
VOLUME /data
EXPOSE 8931
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s CMD ["nonet-healthy"]
ENTRYPOINT ["nonet"]
CMD ["serve", "--http", "0.0.0.0:8931"]

# With Node.js and npx, Python, uv and uvx, git: several times the size. What `docker build` makes if no target is named.
FROM node:24-trixie-slim AS node

FROM slim AS full
USER 0
# `pip install uv onnxruntime` here lets `[embedder] model` run another model.
RUN apt-get update \
    && apt-get install -y --no-install-recommends git libatomic1 libstdc++6 python3 python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3 -m venv /opt/python \
    && /opt/python/bin/pip install --no-cache-dir uv==0.13.9
COPY --from=node /usr/local/bin/node /usr/local/bin/node
COPY --from=node /usr/local/lib/node_modules/npm /usr/local/lib/node_modules/npm
RUN ln -s ../lib/node_modules/npm/bin/npm-cli.js /usr/local/bin/npm \
    && ln -s ../lib/node_modules/npm/bin/npx-cli.js /usr/local/bin/npx
ENV PATH=/opt/python/bin:$PATH
USER 10001:10001
