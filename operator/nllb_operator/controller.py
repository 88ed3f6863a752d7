"""Keeps every fleet reconciled: marks what has changed, runs a few workers, looks at all fleets now and then.

Knows time and errors. Must not know what a reconcile does, or where fleets live.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

from nllb_operator.backends.base import Backend, BackendUnavailable, FleetKey
from nllb_operator.dirty_queue import DirtyQueue
from nllb_operator.metrics import OperatorMetrics
from nllb_operator.pod_client import PodClient
from nllb_operator.reconcile import FleetReconciler, Outcome
from nllb_operator.settings import OperatorSettings

log = logging.getLogger(__name__)

SETTLE_SECONDS = 0.05
"""Changes come in bursts; a look that waits a moment sees the whole burst."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
QUIET_LOOKS = 8
"""After so many looks that found nothing new, the pause between looks has doubled."""


@dataclass
class _Pace:
    """How a fleet's looks have gone: `quiet` without news while busy, `failures` in a row."""

    quiet: int = 0
    failures: int = 0


class Controller:
    """Runs until cancelled. `passed`: monotonic time of the last resync before which all were looked at."""

    def __init__(self, backend: Backend, settings: OperatorSettings, metrics: OperatorMetrics) -> None:
        """Nothing happens before `run`."""
        self._backend = backend
        self._settings = settings
        self._metrics = metrics
        self._queue: DirtyQueue[FleetKey] = DirtyQueue()
        self._pace: dict[FleetKey, _Pace] = {}
        self._unseen: set[FleetKey] = set()
        self.passed = time.monotonic()

    async def run(self) -> None:
        """Reconcile for ever."""
        async with PodClient(self._settings.pod_timeout_seconds) as client:
            reconciler = FleetReconciler(self._backend, client, self._settings)
            tasks = [self._follow(), self._resync()]
            tasks += [self._work(reconciler) for _ in range(self._settings.workers)]
            running = [asyncio.create_task(task) for task in tasks]
            try:
                await asyncio.gather(*running)
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    async def _follow(self) -> None:
        async for key in self._backend.changes():
            self._queue.mark(key, SETTLE_SECONDS)

    async def _resync(self) -> None:
        while True:
            keys = self._backend.keys()
            self._unseen &= keys
            if not self._unseen:
                self.passed, self._unseen = time.monotonic(), set(keys)
            for key in self._pace.keys() - keys:
                del self._pace[key]
            for key in keys:
                self._queue.mark(key)
            self._metrics.queue_depth.set(len(self._queue))
            await asyncio.sleep(self._settings.resync_seconds)

    async def _work(self, reconciler: FleetReconciler) -> None:
        while True:
            key = await self._queue.take()
            began = time.monotonic()
            try:
                outcome = await reconciler.reconcile(key)
            except BackendUnavailable as error:
                log.warning("fleet %s/%s: %s", key.namespace, key.name, error)
                self._retry(key, "unavailable")
            except Exception:
                log.exception("fleet %s/%s: the reconcile failed; it is repeated", key.namespace, key.name)
                self._retry(key, "error")
            else:
                self._metrics.reconciles.labels("ok").inc()
                self._schedule(key, outcome)
            finally:
                self._metrics.reconcile_seconds.observe(time.monotonic() - began)
                self._unseen.discard(key)
                self._queue.done(key)

    def _retry(self, key: FleetKey, result: str) -> None:
        self._metrics.reconciles.labels(result).inc()
        pace = self._pace.setdefault(key, _Pace())
        pace.failures += 1
        pause = min(FIRST_RETRY_SECONDS * 2 ** (pace.failures - 1), LONGEST_RETRY_SECONDS)
        self._queue.mark(key, pause)

    def _schedule(self, key: FleetKey, outcome: Outcome) -> None:
        pace = self._pace.setdefault(key, _Pace())
        pace.failures = 0
        pace.quiet = 0 if outcome.changed or not outcome.busy else pace.quiet + 1
        if outcome.busy:
            pause = self._settings.busy_seconds * (1 + pace.quiet / QUIET_LOOKS)
            self._queue.mark(key, min(pause, self._settings.resync_seconds))
