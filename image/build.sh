#!/bin/sh
# Builds the images nllb-fleet-operator and nllb-fleet-server with buildah or docker, whichever is there.
# usage: image/build.sh [TAG]        variables: BASE_IMAGE, PIP_FIND_LINKS, BUILDER, BUILD_OPTIONS
set -eu
cd "$(dirname "$0")/.."
tag=${1:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
builder=${BUILDER:-$(command -v buildah || command -v docker || true)}
[ -n "$builder" ] || { echo "make image needs buildah or docker; on Debian: apt-get install buildah" >&2; exit 1; }
set -- build ${BASE_IMAGE:+--build-arg "BASE_IMAGE=$BASE_IMAGE"} ${BUILD_OPTIONS:-}
case $builder in *buildah) set -- "$@" --layers ;; esac
if [ -d "${PIP_FIND_LINKS:-}" ]; then set -- "$@" --build-context "find-links=$PIP_FIND_LINKS"; fi
for part in operator server; do
    echo "== nllb-fleet-$part:$tag"
    "$builder" "$@" --target "$part" --tag "nllb-fleet-$part:$tag" --file Dockerfile .
done
"$builder" images | grep -E 'REPOSITORY|nllb-fleet-' || true
