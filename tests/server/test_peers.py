"""Fetching from peers that lie, stall, break off or flood: nothing but the right bytes gets through."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web

from nllb_engine.errors import AdapterRejected, PeerUnavailable
from nllb_engine.lora.digest import FileEntry, digest_of, folder_digest
from nllb_engine.lora.store import AdapterStore
from nllb_server import peers
from nllb_server.peers import HttpPeerSource, peer_manifest
from nllb_server.wire import PEER_PATH

MAX_BYTES = 1 << 20
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Not a real adapter: only its bytes matter here."""
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text('{"r": 4}')
    (folder / "adapter_model.safetensors").write_bytes(bytes(range(256)) * 1200)
    return folder


@contextlib.asynccontextmanager
async def peer(
    folder: Path, file: Answer | None = None, manifest: Answer | None = None
) -> AsyncIterator[str]:
    """A server that behaves, but for the handlers that are given; yields its address."""
    digest = folder_digest(folder)
    store = AdapterStore(folder.parent / "peer-store")
    store.add_verified(folder, digest)

    async def good_manifest(request: web.Request) -> web.StreamResponse:
        found = peer_manifest(store, request.match_info["digest"])
        assert found is not None
        return web.json_response(text=found.model_dump_json())

    async def good_file(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(folder / request.match_info["file"])

    app = web.Application()
    app.router.add_get(PEER_PATH + "/{digest}", manifest or good_manifest)
    app.router.add_get(PEER_PATH + "/{digest}/{file}", file or good_file)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield "{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def dribbling_peer(first: bytes, then: bytes) -> AsyncIterator[str]:
    """Sends `first` at once and `then` every 50 ms, for as long as it lives; yields its address."""
    open_connections = set()

    async def dribble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        open_connections.add(task)
        with contextlib.suppress(asyncio.CancelledError):
            writer.write(first)
            while True:
                writer.write(then)
                await asyncio.sleep(0.05)
        writer.close()

    async with await asyncio.start_server(dribble, "127.0.0.1", 0) as server:
        yield "{}:{}".format(*server.sockets[0].getsockname())
        for task in open_connections:
            task.cancel()
        await asyncio.wait(open_connections)
        await asyncio.sleep(0)  # the transports close in the next turn of the loop


async def fetch(address: str, adapter: Path, into: Path, max_bytes: int = MAX_BYTES) -> None:
    into.mkdir(exist_ok=True)
    source, digest = HttpPeerSource(max_bytes), folder_digest(adapter)
    await asyncio.to_thread(source.fetch, address, digest, into)


def model_file(adapter: Path) -> bytes:
    return (adapter / "adapter_model.safetensors").read_bytes()


def start_of(request: web.Request) -> int:
    return request.http_range.start or 0


def only_for_the_model(answer: Answer, folder: Path) -> Answer:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.match_info["file"] != "adapter_model.safetensors":
            return web.FileResponse(folder / request.match_info["file"])
        return await answer(request)

    return handler


async def test_the_files_of_a_peer_arrive_whole(adapter: Path, tmp_path: Path) -> None:
    async with peer(adapter) as address:
        await fetch(address, adapter, tmp_path / "into")
    assert folder_digest(tmp_path / "into") == folder_digest(adapter)


async def test_a_broken_connection_is_resumed_where_it_broke(adapter: Path, tmp_path: Path) -> None:
    content, starts = model_file(adapter), []

    async def breaks_off(request: web.Request) -> web.StreamResponse:
        start = start_of(request)
        starts.append(start)
        reply = web.StreamResponse(status=206 if start else 200)
        reply.content_length = len(content) - start
        if start:
            reply.headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        await reply.prepare(request)
        await reply.write(content[start : start + 120_000])
        if start + 120_000 < len(content) and request.transport:
            await asyncio.sleep(0.05)
            request.transport.abort()
        return reply

    async with peer(adapter, only_for_the_model(breaks_off, adapter)) as address:
        await fetch(address, adapter, tmp_path / "into")
    assert folder_digest(tmp_path / "into") == folder_digest(adapter)
    assert len(starts) > 1 and starts == sorted(set(starts)), "nothing is fetched twice"


async def test_one_flipped_bit_is_found_wherever_it_is(adapter: Path, tmp_path: Path) -> None:
    content = model_file(adapter)
    for position in range(0, len(content), len(content) // 19):
        flipped = bytearray(content)
        flipped[position] ^= 1

        async def lies(request: web.Request, body: bytes = bytes(flipped)) -> web.StreamResponse:
            return web.Response(body=body)

        async with peer(adapter, only_for_the_model(lies, adapter)) as address:
            with pytest.raises(PeerUnavailable, match="other content"):
                await fetch(address, adapter, tmp_path / str(position))


async def test_files_of_another_adapter_are_refused_before_they_are_fetched(
    adapter: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(adapter, tmp_path / "other")
    (other / "adapter_config.json").write_text('{"r": 8}')
    asked: list[str] = []

    async def counts(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.FileResponse(other / request.match_info["file"])

    async def lies(request: web.Request) -> web.StreamResponse:
        store = AdapterStore(tmp_path / "other-store")
        store.add_verified(other, folder_digest(other))
        found = peer_manifest(store, folder_digest(other))
        assert found is not None
        honest = found.model_dump() | {"digest": request.match_info["digest"]}
        return web.json_response(honest)

    async with peer(adapter, counts, lies) as address:
        with pytest.raises(PeerUnavailable, match="other files"):
            await fetch(address, adapter, tmp_path / "into")
    assert asked == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b", ".hidden", "", "a\x00b"])
async def test_a_name_that_leaves_its_folder_is_refused(adapter: Path, tmp_path: Path, name: str) -> None:
    entry = FileEntry(name, 1, "0" * 64)

    async def lies(request: web.Request) -> web.StreamResponse:
        files = [{"name": entry.name, "size": entry.size, "sha256": entry.sha256}]
        return web.json_response({"digest": digest_of([entry]), "files": files})

    async with peer(adapter, manifest=lies) as address:
        into = tmp_path / "into"
        into.mkdir()
        with pytest.raises(PeerUnavailable, match="no usable manifest"):
            await asyncio.to_thread(HttpPeerSource(MAX_BYTES).fetch, address, digest_of([entry]), into)
        assert list(into.iterdir()) == []


@pytest.mark.parametrize(
    "body", [b"", b"<html>not found</html>", b"{}", b"[" * 20_000, b'{"digest": 1}', b"x" * 100_000]
)
async def test_a_manifest_that_is_none_is_refused(adapter: Path, tmp_path: Path, body: bytes) -> None:
    async def lies(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body)

    async with peer(adapter, manifest=lies) as address:
        with pytest.raises(PeerUnavailable, match="no usable manifest"):
            await fetch(address, adapter, tmp_path / "into")


async def test_more_bytes_than_announced_are_not_taken(adapter: Path, tmp_path: Path) -> None:
    content = model_file(adapter)

    async def floods(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(status=206 if start_of(request) else 200)
        if start_of(request):
            reply.headers["Content-Range"] = f"bytes {start_of(request)}-/{len(content)}"
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(64):
                await reply.write(content)
        return reply

    async with peer(adapter, only_for_the_model(floods, adapter)) as address:
        with pytest.raises(PeerUnavailable, match="more than"):
            await fetch(address, adapter, tmp_path / "into")
    assert (tmp_path / "into" / "adapter_model.safetensors").stat().st_size <= len(content)


async def test_an_adapter_larger_than_allowed_is_refused_as_content(adapter: Path, tmp_path: Path) -> None:
    async with peer(adapter) as address:
        with pytest.raises(AdapterRejected, match="TooLarge"):
            await fetch(address, adapter, tmp_path / "into", max_bytes=1000)


async def test_a_peer_that_trickles_is_given_up_in_time(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "GRACE_SECONDS", 0.4)

    async def trickles(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse()
        reply.content_length = len(model_file(adapter))
        await reply.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                await reply.write(b"x")
                await asyncio.sleep(0.02)
        return reply

    async with peer(adapter, only_for_the_model(trickles, adapter)) as address, asyncio.timeout(8):
        with pytest.raises(PeerUnavailable, match=r"too slow|did not deliver"):
            await fetch(address, adapter, tmp_path / "into")


async def test_a_peer_that_accepts_and_says_nothing_is_given_up_in_time(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "GRACE_SECONDS", 0.4)

    async with dribbling_peer(b"", b"") as address, asyncio.timeout(8):
        with pytest.raises(PeerUnavailable, match="did not deliver"):
            await fetch(address, adapter, tmp_path / "into")


async def test_a_head_that_never_ends_is_cut_at_the_deadline(
    adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "GRACE_SECONDS", 0.4)

    async with dribbling_peer(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n") as address, asyncio.timeout(8):
        with pytest.raises(PeerUnavailable):
            await fetch(address, adapter, tmp_path / "into")


async def test_redirects_are_not_followed_and_other_encodings_not_taken(
    adapter: Path, tmp_path: Path
) -> None:
    async def redirects(request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("http://169.254.169.254/")

    async def compresses(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x", headers={"Content-Encoding": "gzip"})

    for answer, complaint in ((redirects, "answered 302"), (compresses, "encoding")):
        async with peer(adapter, answer) as address:
            with pytest.raises(PeerUnavailable, match=complaint):
                await fetch(address, adapter, tmp_path / complaint)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "nowhere.invalid:80", "", "host:port"])
async def test_an_address_where_nobody_answers_is_a_fault_of_the_pod(
    adapter: Path, tmp_path: Path, address: str
) -> None:
    with pytest.raises(PeerUnavailable):
        await fetch(address, adapter, tmp_path / "into")


def test_a_manifest_is_only_made_of_what_is_stored(adapter: Path, tmp_path: Path) -> None:
    assert peer_manifest(AdapterStore(tmp_path / "store"), folder_digest(adapter)) is None
    with pytest.raises(AdapterRejected):
        peer_manifest(AdapterStore(tmp_path / "store"), "../adapter")
