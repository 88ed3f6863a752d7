"""Real server processes on loopback, as tests use them: start, ask, stop."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from nllb_engine.testing import Recording, read_recording
from nllb_server.wire import INVENTORY_PATH, TRANSLATE_PATH, WANTED_PATH, Inventory, WantedSet

START_SECONDS = 60
_SCRIPT = Path(__file__).with_name("recording_server.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class ServerPod:
    """One server process. `home` holds its adapters, its log and its recording."""

    name: str
    home: Path
    env: dict[str, str]
    session: aiohttp.ClientSession
    process: asyncio.subprocess.Process
    url: str
    control_addr: str
    exit_code: int | None = field(default=None)

    @property
    def control_url(self) -> str:
        return f"http://{self.control_addr}"

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(encoding="utf-8")

    @property
    def recording(self) -> Recording:
        return read_recording(next(self.home.glob(f"recording/{self.name}.{self.process.pid}.jsonl")))

    async def translate(self, text: str | list[str], **options: Any) -> tuple[int, dict[str, Any]]:
        body = {"text": text, "source": "eng_Latn", "target": "deu_Latn", **options}
        async with self.session.post(self.url + TRANSLATE_PATH, json=body) as reply:
            return reply.status, await reply.json()

    async def texts(self, text: str | list[str], **options: Any) -> list[str]:
        status, body = await self.translate(text, **options)
        assert status == 200, body
        return [one["text"] for one in body["translations"]]

    async def get(self, path: str) -> tuple[int, Any]:
        async with self.session.get(self.url + path) as reply:
            return reply.status, await reply.json()

    async def put_wanted(self, wanted: WantedSet) -> tuple[int, dict[str, Any]]:
        headers = {"Content-Type": "application/json"}
        async with self.session.put(
            self.control_url + WANTED_PATH, data=wanted.model_dump_json(), headers=headers
        ) as reply:
            return reply.status, await reply.json()

    async def inventory(self) -> Inventory:
        async with self.session.get(self.control_url + INVENTORY_PATH) as reply:
            return Inventory.model_validate(await reply.json())

    async def until(self, wish: Callable[[Inventory], bool], seconds: float = 20) -> Inventory:
        """Wait until the inventory fulfils `wish`."""
        limit = time.monotonic() + seconds
        while not wish(inventory := await self.inventory()):
            assert time.monotonic() < limit, f"not within {seconds} s: {inventory}\n{self.log}"
            await asyncio.sleep(0.02)
        return inventory

    async def until_ready(self, seconds: float = START_SECONDS) -> None:
        limit = time.monotonic() + seconds
        while True:
            assert self.process.returncode is None, f"{self.name} ended early:\n{self.log}"
            assert time.monotonic() < limit, f"{self.name} did not become ready:\n{self.log}"
            with contextlib.suppress(aiohttp.ClientError):
                async with self.session.get(self.url + "/readyz") as reply:
                    if reply.status == 200:
                        return
            await asyncio.sleep(0.05)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


@contextlib.asynccontextmanager
async def server_pod(
    model: Path, home: Path, name: str = "pod-0", *, wait: bool = True, **settings: object
) -> AsyncIterator[ServerPod]:
    """A process that serves `model`, ended by SIGTERM; settings as keywords: max_batch=4, fleet="f"."""
    home.mkdir(parents=True, exist_ok=True)
    http_port, control_port = free_port(), free_port()
    env = {key: value for key, value in os.environ.items() if not key.startswith("NLLB_")}
    fixed = {
        "model_uri": f"file://{model}", "adapters_dir": home / "adapters", "cache_dir": home / "cache",
        "wanted_file": home / "wanted.json", "volumes_dir": home / "volumes", "device": "cpu",
        "host": "127.0.0.1", "http_port": http_port, "control_port": control_port, "pod_name": name,
        "cpu_threads": 1, "drain_lag_seconds": 0, "max_batch": 16,
    }  # fmt: skip
    env |= {f"NLLB_{key.upper()}": str(value) for key, value in {**fixed, **settings}.items()}
    with (home / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-X",
            "faulthandler",
            str(_SCRIPT),
            str(home / "recording"),
            env=env,
            stdout=log,
            stderr=log,
        )
    async with aiohttp.ClientSession() as session:
        pod = ServerPod(
            name, home, env, session, process, f"http://127.0.0.1:{http_port}", f"127.0.0.1:{control_port}"
        )
        try:
            if wait:
                await pod.until_ready()
            yield pod
        finally:
            if process.returncode is None:
                pod.terminate()
            try:
                async with asyncio.timeout(30):
                    pod.exit_code = await process.wait()
            except TimeoutError:
                process.send_signal(
                    signal.SIGABRT
                )  # faulthandler then writes every thread's stack to the log
                await process.wait()
                raise AssertionError(f"{name} did not end after SIGTERM:\n{pod.log}") from None
