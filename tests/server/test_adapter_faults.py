"""Adapters whose content or whose source is at fault, between real server processes."""

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from adapter_world import TEXTS, World, adapter_world, answers, from_peer
from aiohttp import web

from nllb_engine.lora.digest import FileEntry, digest_of
from nllb_server.wire import PEER_PATH

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tiny_nllb: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with adapter_world(tiny_nllb, tmp_path_factory.mktemp("fleet")) as world:
        yield world


async def test_content_that_is_not_what_was_ordered_is_a_fault_of_the_content(world: World) -> None:
    other = world.digests["v2"][::-1]
    entry = (await world.settle(world.one, world.wanted("v1", name="x", digest=other)))["x"]
    assert entry.state == "Failed" and entry.error is not None
    assert (entry.error.reason, entry.error.fault) == ("DigestMismatch", "content")
    status, body = await world.one.translate(TEXTS[0], adapter="x")
    assert (status, body["error"]["code"]) == (503, "adapter_failed")


async def test_an_adapter_that_the_gate_refuses_is_not_kept_and_not_offered(world: World) -> None:
    broken = shutil.copytree(world.volume / "v1", world.volume / "broken", dirs_exist_ok=True)
    weights = broken / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    entry = (await world.settle(world.one, world.wanted("broken", digest=None)))["broken"]
    assert entry.state == "Failed" and entry.error is not None and entry.error.fault == "content"
    assert set((await world.one.inventory()).stored) <= set(world.digests.values())


async def test_an_origin_that_is_not_there_is_a_fault_of_the_pod(world: World) -> None:
    entry = (await world.settle(world.one, world.wanted("nowhere")))["nowhere"]
    assert entry.error is not None
    assert (entry.error.reason, entry.error.fault) == ("OriginUnavailable", "pod")
    assert "check the path" in entry.error.message


@contextlib.asynccontextmanager
async def lying_peer(world: World, folder: str) -> AsyncIterator[str]:
    """Announces the true manifest of an adapter and serves its files with one bit flipped."""
    files = {file.name: file.read_bytes() for file in (world.volume / folder).iterdir()}

    async def manifest(request: web.Request) -> web.Response:
        async with world.one.session.get(f"{world.one.control_url}{request.path}") as reply:
            return web.Response(body=await reply.read())

    async def content(request: web.Request) -> web.Response:
        body = bytearray(files[request.match_info["file"]])
        body[-1] ^= 1
        return web.Response(body=bytes(body))

    app = web.Application()
    app.router.add_get(PEER_PATH + "/{digest}", manifest)
    app.router.add_get(PEER_PATH + "/{digest}/{file}", content)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "{}:{}".format(*runner.addresses[0])
    finally:
        await runner.cleanup()


async def test_corrupted_content_of_a_peer_activates_nothing_and_the_next_source_heals(world: World) -> None:
    await world.settle(world.one, world.wanted("v5"))
    assert world.digests["v5"] not in (await world.two.inventory()).stored
    async with lying_peer(world, "v5") as address:
        liar = {"kind": "peer", "addr": address}
        entry = (await world.settle(world.two, world.wanted("v5", sources=[liar])))["v5"]
        assert entry.state == "Failed" and entry.error is not None
        assert (entry.error.reason, entry.error.fault) == ("PeerUnavailable", "pod")
        status, body = await world.two.translate(TEXTS[0], adapter="v5")
        assert (status, body["error"]["code"]) == (503, "adapter_failed")
        assert world.digests["v5"] not in (await world.two.inventory()).stored
        await world.put(world.two, world.wanted("v5", sources=[liar, *from_peer(world.one)]))
        await world.two.until(lambda found: found.adapters[0].state == "Loaded")
    assert await answers(world.two, "v5") == (world.digests["v5"], world.outputs[world.digests["v5"]])
    assert world.two.recording.failed_promotions


async def test_peer_content_is_served_by_ranges_and_from_the_store_only(world: World) -> None:
    await world.settle(world.one, world.wanted("v1"))
    base = f"{world.one.control_url}{PEER_PATH}/{world.digests['v1']}"
    async with world.one.session.get(base) as reply:
        files = (await reply.json())["files"]
    assert digest_of(FileEntry(**file) for file in files) == world.digests["v1"]
    whole = (world.volume / "v1" / "adapter_model.safetensors").read_bytes()
    async with world.one.session.get(
        f"{base}/adapter_model.safetensors", headers={"Range": "bytes=1000-1999"}
    ) as reply:
        assert (reply.status, await reply.read()) == (206, whole[1000:2000])
    for path in ("/nothing.bin", "/..%2f..%2flog", "/README.md"):
        async with world.one.session.get(base + path) as reply:
            assert reply.status == 404
    for digest, status in (("0" * 64, 404), ("..%2f..", 400), ("ABC", 400)):
        async with world.one.session.get(f"{world.one.control_url}{PEER_PATH}/{digest}") as reply:
            assert reply.status == status


async def test_all_references_are_given_back_in_the_end(world: World) -> None:
    for pod in (world.one, world.two):
        async with pod.session.get(pod.url + "/metrics") as reply:
            assert "nllb_adapter_refs 0.0" in await reply.text()
