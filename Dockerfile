# The query service, the collector and the command line in one image; the role is the first argument:
#   docker run IMAGE serve | collect | run | stats ...
# Without one it is `run`: both roles, and the index in a bundled Valkey unless redis.url names another.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY indexer indexer
COPY collector collector
COPY lua lua
RUN python3 -m venv /build \
 && /build/bin/pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .
# Wheels only: a dependency that would have to be compiled ends the build. The environment has no pip of its own.
RUN python3 -m venv --without-pip /opt/cache-indexer \
 && /build/bin/pip --python /opt/cache-indexer/bin/python install --no-cache-dir --only-binary :all: \
      "$(echo /wheels/cache_indexer-*.whl)[embedded,kubernetes,xxhash]"

FROM ${BASE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="cache-indexer" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/cache-indexer /opt/cache-indexer
# The user has no entry in passwd, and libraries ask for a home.
ENV PATH=/opt/cache-indexer/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
# A number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /tmp
EXPOSE 28080 28081
# The program is the container's first process and ends by SIGTERM itself, its workers with it.
ENTRYPOINT ["cache-indexer"]
CMD ["run"]
