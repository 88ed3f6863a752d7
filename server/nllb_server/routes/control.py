"""Control port: the operator's wanted set and inventory, and adapters' content for peers.

Knows the wire and the manager. Serves peers from the store only: what is there has been verified.
"""

import asyncio

from aiohttp import web

from nllb_engine.errors import AdapterRejected
from nllb_engine.lora.store import AdapterStore
from nllb_server.keys import POD
from nllb_server.peers import peer_manifest
from nllb_server.problems import ApiError
from nllb_server.routes.bodies import json_reply, read_body
from nllb_server.wire import PeerManifest, WantedSet


async def inventory(request: web.Request) -> web.Response:
    """Everything this pod holds."""
    return json_reply(request.app[POD].inventory())


async def put_wanted(request: web.Request) -> web.Response:
    """Take the whole wanted set over and answer with the inventory; converging goes on afterwards."""
    pod = request.app[POD]
    pod.manager.accept(await read_body(request, WantedSet))
    pod.operator_called = True
    return json_reply(pod.inventory())


class PeerContent:
    """Files of stored adapters. Manifests are hashed once: what a digest names never changes."""

    def __init__(self, store: AdapterStore) -> None:
        """Serve from `store`."""
        self._store = store
        self._manifests: dict[str, PeerManifest] = {}

    async def manifest(self, request: web.Request) -> web.Response:
        """Names, sizes and hashes of an adapter's files; 404 when it is not stored here."""
        return json_reply(await self._manifest(request.match_info["digest"]))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """One file, or the range of it that was asked for."""
        digest, name = request.match_info["digest"], request.match_info["file"]
        manifest = await self._manifest(digest)
        folder = self._store.path(digest)
        if folder is None or name not in {file.name for file in manifest.files}:
            raise ApiError(
                404, "unknown_file", "the adapter has no such file; its manifest lists those it has"
            )
        return web.FileResponse(folder / name, headers={"Content-Type": "application/octet-stream"})

    async def _manifest(self, digest: str) -> PeerManifest:
        try:
            stored = self._store.path(digest) is not None
        except AdapterRejected as error:
            raise ApiError(400, "bad_digest", error.detail) from error
        if stored and digest not in self._manifests:
            manifest = await asyncio.to_thread(peer_manifest, self._store, digest)
            if manifest is not None:
                self._manifests[digest] = manifest
        if not stored or digest not in self._manifests:
            raise ApiError(
                404, "unknown_adapter", "no adapter with this digest is stored here; ask another pod"
            )
        return self._manifests[digest]
