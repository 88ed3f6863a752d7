"""Peer content over HTTP: fetch an adapter from another pod, and describe those that others may fetch.

Knows the peer routes, sizes, rates and deadlines. Must not know slots, names of adapters or the control
plane. A peer is not trusted: the manifest must hash to the digest that was asked for, and each file to the
manifest, as its bytes arrive.
"""

import contextlib
import hashlib
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from nllb_engine.errors import AdapterRejected, PeerUnavailable
from nllb_engine.lora.digest import MAX_FILES, FileEntry, digest_of, folder_manifest
from nllb_engine.lora.store import AdapterStore
from nllb_server.wire import PEER_PATH, PeerFile, PeerManifest

SILENCE_SECONDS = 5.0
"""Longest wait for a connection or the next bytes."""
MIN_BYTES_PER_SECOND = 256 * 1024
"""A slower peer is given up; it also bounds the whole transfer, on top of `GRACE_SECONDS`."""
GRACE_SECONDS = 5.0
RESUMES_PER_FILE = 3
_MAX_MANIFEST_BYTES = 64 * 1024
_CHUNK = 256 * 1024


class _ConnectionBroken(PeerUnavailable):
    """The connection failed; what arrived before is good, and the rest can be asked for again."""


class HttpPeerSource:
    """An AdapterSource over HTTP. Blocking; any number of threads may fetch at once."""

    def __init__(self, max_bytes: int) -> None:
        """Refuse adapters of more than `max_bytes`."""
        self._max_bytes = max_bytes

    def fetch(self, peer_addr: str, adapter_id: str, into: Path) -> None:
        """Write the files of `adapter_id` into the empty folder `into`; see AdapterSource."""
        manifest = self._manifest(peer_addr, adapter_id)
        size = sum(file.size for file in manifest.files)
        deadline = time.monotonic() + GRACE_SECONDS + size / MIN_BYTES_PER_SECOND
        for file in manifest.files:
            _fetch_file(peer_addr, adapter_id, file, into / file.name, deadline)

    def _manifest(self, peer_addr: str, adapter_id: str) -> PeerManifest:
        deadline = time.monotonic() + GRACE_SECONDS
        with _get(peer_addr, f"{PEER_PATH}/{adapter_id}", {}, deadline) as reply:
            _expect(reply, 200, peer_addr)
            body = reply.read(_MAX_MANIFEST_BYTES + 1)
        try:
            if len(body) > _MAX_MANIFEST_BYTES:
                raise ValueError("too long")
            manifest = PeerManifest.model_validate(json.loads(body))
        except (ValueError, ValidationError, RecursionError):
            raise PeerUnavailable(f"{peer_addr} sent no usable manifest of the adapter") from None
        entries = [FileEntry(file.name, file.size, file.sha256) for file in manifest.files]
        distinct = len({entry.name for entry in entries}) == len(entries) <= MAX_FILES
        if not distinct or digest_of(entries) != adapter_id:
            raise PeerUnavailable(f"{peer_addr} offers other files than the adapter that was asked for")
        size = sum(entry.size for entry in entries)
        if size > self._max_bytes:
            raise AdapterRejected(
                "TooLarge", f"the files have {size} bytes; at most {self._max_bytes} are taken"
            )
        return manifest


def peer_manifest(store: AdapterStore, digest: str) -> PeerManifest | None:
    """What this pod offers for `digest`, hashed from its store; None when it is not stored. Blocking."""
    folder = store.path(digest)
    if folder is None:
        return None
    files = [PeerFile(name=one.name, size=one.size, sha256=one.sha256) for one in folder_manifest(folder)]
    return PeerManifest(digest=digest, files=files)


def _fetch_file(peer_addr: str, adapter_id: str, file: PeerFile, path: Path, deadline: float) -> None:
    """Fetch one file, resuming by range where a connection breaks; the bytes are hashed as they arrive."""
    sha256, done = hashlib.sha256(), 0
    with path.open("xb") as out:
        for attempt in range(RESUMES_PER_FILE + 1):
            try:
                for chunk in _body(
                    peer_addr, f"{PEER_PATH}/{adapter_id}/{file.name}", done, file.size, deadline
                ):
                    out.write(chunk)
                    sha256.update(chunk)
                    done += len(chunk)
            except _ConnectionBroken:
                if attempt == RESUMES_PER_FILE or time.monotonic() >= deadline or done == 0:
                    raise
            if done == file.size:
                break
        else:
            raise PeerUnavailable(f"{peer_addr} sent {done} of {file.size} bytes of {file.name}")
    if sha256.hexdigest() != file.sha256:
        raise PeerUnavailable(f"{peer_addr} sent other content for {file.name} than it announced")


def _body(peer_addr: str, path: str, start: int, size: int, deadline: float) -> Iterator[bytes]:
    """Bytes `start`..`size` of a file; PeerUnavailable for more bytes, another range or too slow a peer."""
    if start == size:
        return
    headers = {"Range": f"bytes={start}-"} if start else {}
    with _get(peer_addr, path, headers, deadline) as reply:
        _expect(reply, 206 if start else 200, peer_addr)
        if start and not re.match(rf"bytes {start}-", reply.getheader("Content-Range", "")):
            raise PeerUnavailable(f"{peer_addr} answered with another range than the one asked for")
        began, received = time.monotonic(), 0
        while chunk := reply.read1(_CHUNK):
            received += len(chunk)
            if start + received > size:
                raise PeerUnavailable(f"{peer_addr} sends more than the {size} bytes it announced")
            yield chunk
            elapsed = time.monotonic() - began
            if elapsed > GRACE_SECONDS and received < elapsed * MIN_BYTES_PER_SECOND:
                raise PeerUnavailable(f"{peer_addr} is too slow: {received} bytes in {elapsed:.0f} s")


@contextlib.contextmanager
def _get(
    peer_addr: str, path: str, headers: dict[str, str], deadline: float
) -> Iterator[http.client.HTTPResponse]:
    """One GET without redirects or compression; the socket is cut at `deadline`, whatever the peer does."""
    host, _, port = peer_addr.rpartition(":")
    if not host or not port.isdigit():
        raise PeerUnavailable(f"{peer_addr!r} is no address; it must be host:port")
    left = deadline - time.monotonic()
    if left <= 0:
        raise PeerUnavailable(f"{peer_addr} did not deliver in time")
    connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=min(SILENCE_SECONDS, left))
    cutter = None
    try:
        connection.connect()
        cutter = threading.Timer(left, _cut, [connection.sock])
        cutter.daemon = True
        cutter.start()
        connection.request("GET", path, headers={"Accept-Encoding": "identity", **headers})
        yield connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionBroken(f"{peer_addr} did not deliver: {type(error).__name__}") from error
    finally:
        if cutter is not None:
            cutter.cancel()
        connection.close()


def _cut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed meanwhile
        connected.shutdown(socket.SHUT_RDWR)


def _expect(reply: http.client.HTTPResponse, status: int, peer_addr: str) -> None:
    if reply.status != status:
        raise PeerUnavailable(f"{peer_addr} answered {reply.status}, not {status}")
    if reply.getheader("Content-Encoding", "identity") != "identity":
        raise PeerUnavailable(f"{peer_addr} answered with an encoding that was not asked for")
