# Two images from one wheel: `operator` (slim, without torch) and `server` (with torch).
#
#   make image                      both, by buildah or docker
#   --build-arg BASE_IMAGE=…        any image with Python ≥ 3.11 as `python3`, its venv module and the same libc
#
# When PIP_FIND_LINKS is a folder, image/build.sh gives it as the build context `find-links`: a build of torch there
# goes before the published one.
ARG BASE_IMAGE=python:3.11-slim-bookworm

FROM scratch AS find-links

FROM ${BASE_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /src
COPY requirements requirements
RUN python3 -m venv /tools && /tools/bin/pip install --quiet --no-deps --require-hashes -r requirements/build.txt
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY operator operator
COPY engine engine
COPY server server
COPY crds crds
RUN /tools/bin/python -m hatchling build -t wheel -d /wheel

FROM build AS operator-environment
RUN requirements/image.sh /opt/nllb operator

FROM build AS server-environment
RUN --mount=type=bind,from=find-links,target=/find-links requirements/image.sh /opt/nllb server

FROM ${BASE_IMAGE} AS operator
COPY --from=operator-environment /opt/nllb /opt/nllb
ENV PATH=/opt/nllb/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=nllb HOME=/tmp
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/opt/nllb/bin/python", "-m", "nllb_operator"]

FROM ${BASE_IMAGE} AS server
COPY --from=server-environment /opt/nllb /opt/nllb
ENV PATH=/opt/nllb/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 USER=nllb HOME=/tmp HF_HUB_OFFLINE=1
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["/opt/nllb/bin/python", "-m", "nllb_server"]
