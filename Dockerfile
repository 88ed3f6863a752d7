# Two images from one wheel: `operator` (slim, without torch) and `server` (with torch).
#
#   make image                      both, by buildah or docker
#   --build-arg BASE_IMAGE=…        any image with Python ≥ 3.11 as `python3`, its venv module and the same libc
#
# A folder of PIP_FIND_LINKS is mounted at /find-links by image/build.sh: a build of torch there goes before the
# published one.
ARG BASE_IMAGE=python:3.11-slim-bookworm

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
RUN requirements/image.sh /opt/nllb server

FROM ${BASE_IMAGE} AS operator
COPY --from=operator-environment /opt/nllb /opt/nllb
ENV PATH=/opt/nllb/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/opt/nllb/bin/python", "-m", "nllb_operator"]

FROM ${BASE_IMAGE} AS server
COPY --from=server-environment /opt/nllb /opt/nllb
ENV PATH=/opt/nllb/bin:$PATH PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
USER 65532:65532
EXPOSE 8000 8001
ENTRYPOINT ["/opt/nllb/bin/python", "-m", "nllb_server"]
