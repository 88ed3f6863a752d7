"""A pod's control port with nothing behind it: answers, keeps what it is told, or misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web
from operator_objects import Objects

from nllb_operator.backends.base import PodView
from nllb_server.wire import INVENTORY_PATH, WANTED_PATH, Inventory, InventoryAdapter, WantedSet


@dataclass
class WirePod:
    """`mood`: "well", "hang" (never answers), "junk" (not an inventory), "flood" (no end), "refuse" (409)."""

    name: str
    addr: str = ""
    mood: str = "well"
    boot_id: str = "first"
    revision: int = -1
    told: list[WantedSet] = field(default_factory=list)
    asked: int = 0
    pod_uid: str = ""

    def inventory(self, make: Objects) -> Inventory:
        adapters = self.told[-1].adapters if self.told else []
        entries = [
            InventoryAdapter(name=item.name, uid=item.uid, generation=item.generation, state="Absent")
            for item in adapters
        ]
        return make.inventory(
            self.name, *entries, boot_id=self.boot_id, revision=self.revision,
            pod_uid=self.pod_uid or f"uid-of-{self.name}",
        )  # fmt: skip

    def restart(self) -> None:
        self.boot_id, self.revision = self.boot_id + "+", -1

    def view(self, make: Objects) -> PodView:
        return make.pod(name=self.name, control_addr=self.addr)


@contextlib.asynccontextmanager
async def wire_pod(make: Objects, name: str) -> AsyncIterator[WirePod]:
    pod = WirePod(name)

    async def misbehave() -> web.StreamResponse | None:
        if pod.mood == "hang":
            await asyncio.sleep(3600)
        if pod.mood == "junk":
            return web.json_response({"hello": "world"})
        if pod.mood == "flood":
            return web.Response(body=b" " * (20 << 20))
        return None

    async def get(_: web.Request) -> web.StreamResponse:
        pod.asked += 1
        return await misbehave() or web.json_response(text=pod.inventory(make).model_dump_json())

    async def put(request: web.Request) -> web.StreamResponse:
        wanted = WantedSet.model_validate_json(await request.read())
        if pod.mood == "refuse" or wanted.revision < pod.revision:
            problem = {"error": {"code": "stale_revision", "message": "older than what I have"}}
            return web.json_response(problem, status=409)
        pod.told.append(wanted)
        pod.revision = wanted.revision
        return await misbehave() or web.json_response(text=pod.inventory(make).model_dump_json())

    app = web.Application()
    app.add_routes([web.get(INVENTORY_PATH, get), web.put(WANTED_PATH, put)])
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    pod.addr = f"{host}:{port}"
    try:
        yield pod
    finally:
        await runner.cleanup()
