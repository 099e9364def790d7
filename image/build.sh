#!/usr/bin/env bash
# Builds the image with buildah:   image/build.sh [NAME [ARCHIVE]]     (default: localhost/cache-indexer:dev)
#
# With ARCHIVE, a file name, the image is also written there, as an OCI archive.
#
# BASE names the image to build on. Without it, and without a registry to pull one from, a Debian with Python
# is put together from Debian's packages; it is kept in the cache beside the tests' other big things.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-localhost/cache-indexer:dev}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cache-indexer/image
storage=(--storage-driver "${STORAGE_DRIVER:-overlay}")

need() {
  command -v "$1" >/dev/null || { echo "$1 is missing (Debian: apt-get install $1)" >&2; exit 1; }
}

debian_base() {
  local base=localhost/python:3.11-debian
  if ! buildah "${storage[@]}" images --quiet "$base" >/dev/null 2>&1; then
    need mmdebstrap
    mkdir -p "$cache"
    if [ ! -s "$cache/debian.tar" ]; then
      mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        bookworm "$cache/debian.tar.new" >&2
      mv "$cache/debian.tar.new" "$cache/debian.tar"
    fi
    local container
    container=$(buildah "${storage[@]}" from scratch)
    buildah "${storage[@]}" add --quiet "$container" "$cache/debian.tar" / >/dev/null
    buildah "${storage[@]}" commit --quiet --rm "$container" "$base" >/dev/null
  fi
  echo "$base"
}

need buildah
base=${BASE:-$(debian_base)}
options=(--pull-never)
[ -n "${BASE:-}" ] && options=(--pull)
# pip must reach its index as it does here: with the same settings and certificates.
for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
  [ -e "$file" ] && options+=(--volume "$file:$file:ro")
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
buildah "${storage[@]}" bud --layers --isolation chroot --network host "${options[@]}" \
  --build-arg BASE="$base" --build-arg VERSION="$version" --tag "$name" .
if [ -n "${2:-}" ]; then
  rm -f "$2.new"
  buildah "${storage[@]}" push --quiet "$name" "oci-archive:$2.new:$name"
  mv "$2.new" "$2"
fi
