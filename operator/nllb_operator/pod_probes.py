"""The probes of a pod's container: startup first, then readiness and liveness side by side, as a kubelet
runs them.

Knows HTTP GET and counting. Must not know the process that answers, or what is done about its answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp

from nllb_operator.pod_container import PROBES, Manifest, Probe, probe_of


async def watch_probes(pod: Manifest, ip: str, on_ready: Callable[[bool], None]) -> None:
    """Call `on_ready` when readiness is found or lost; return when startup or liveness has failed.

    Without a readiness probe a container is ready once it has started. Endless without a failure: cancel it.
    """
    startup, readiness, liveness = (probe_of(pod, kind) for kind in PROBES)
    async with aiohttp.ClientSession() as session:
        prober = _Prober(session, ip)
        if startup is not None and not await prober.started(startup):
            return
        ready = asyncio.create_task(prober.watch(readiness, on_ready))
        try:
            if liveness is None:
                await asyncio.Event().wait()
            else:
                await prober.until_dead(liveness)
        finally:
            ready.cancel()


class _Prober:
    def __init__(self, session: aiohttp.ClientSession, ip: str) -> None:
        self._session = session
        self._ip = ip

    async def started(self, probe: Probe) -> bool:
        await asyncio.sleep(probe.initial_delay)
        for _ in range(probe.failure_threshold):
            if await self._answers(probe):
                return True
            await asyncio.sleep(probe.period)
        return False

    async def until_dead(self, probe: Probe) -> None:
        await asyncio.sleep(probe.initial_delay)
        failures = 0
        while failures < probe.failure_threshold:
            failures = 0 if await self._answers(probe) else failures + 1
            await asyncio.sleep(probe.period)

    async def watch(self, probe: Probe | None, on_ready: Callable[[bool], None]) -> None:
        if probe is None:
            on_ready(True)
            return
        await asyncio.sleep(probe.initial_delay)
        good = bad = 0
        while True:
            good, bad = (good + 1, 0) if await self._answers(probe) else (0, bad + 1)
            if good >= probe.success_threshold:
                on_ready(True)
            elif bad >= probe.failure_threshold:
                on_ready(False)
            await asyncio.sleep(probe.period)

    async def _answers(self, probe: Probe) -> bool:
        url = f"http://{probe.host or self._ip}:{probe.port}{probe.path}"
        try:
            async with self._session.get(url, timeout=aiohttp.ClientTimeout(total=probe.timeout)) as reply:
                return 200 <= reply.status < 400
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
