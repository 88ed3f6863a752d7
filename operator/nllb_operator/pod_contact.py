"""What each pod of a fleet last said and was told; polls and tells them all at once.

Knows that a pod which restarts has forgotten what it was told, and that a revision only grows. Must not know
what the pods should hold. One pod that hangs delays nothing but its own answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from nllb_operator.backends.base import PodView
from nllb_operator.pod_client import PodClient, PodUnreachable
from nllb_operator.promotion import PodObservation
from nllb_server.wire import Inventory, WantedAdapter, WantedSet

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 5.0
"""How long the last inventory of a pod that does not answer is believed."""


@dataclass
class _Memory:
    """About one pod: `told`, `elsewhere`, `revision` of the last set accepted since its start `boot_id`."""

    boot_id: str
    inventory: Inventory
    heard: float
    answers: bool = True
    told: Sequence[WantedAdapter] | None = None
    elsewhere: Sequence[str] = ()
    revision: int = -1


@dataclass
class FleetContact:
    """The conversation with the pods of one fleet. A restart of the operator forgets it, harmlessly."""

    fleet: str
    client: PodClient
    _memory: dict[str, _Memory] = field(default_factory=dict)

    async def poll(self, pods: Sequence[PodView]) -> list[PodObservation]:
        """Ask every running pod for its inventory; observations of those that answered (nearly) now."""
        running = [pod for pod in pods if pod.control_addr is not None and pod.phase == "Running"]
        await asyncio.gather(*(self._ask(pod) for pod in running))
        for uid in self._memory.keys() - {pod.uid for pod in running}:
            del self._memory[uid]
        return [self._observation(pod) for pod in running if pod.uid in self._memory]

    async def tell(
        self, observed: Sequence[PodObservation], entries: Mapping[str, Sequence[WantedAdapter]]
    ) -> list[PodObservation]:
        """Send its set to each pod that has not been told just that; the observations afterwards."""
        names = {entry.name for told in entries.values() for entry in told}
        elsewhere = {uid: sorted(names - {entry.name for entry in told}) for uid, told in entries.items()}
        revision = max([time.time_ns() // 1_000_000, *(pod.inventory.revision + 1 for pod in observed)])
        behind = [
            pod
            for pod in observed
            if not pod.leaving
            and self._memory[pod.uid].answers
            and self._is_behind(pod, entries[pod.uid], elsewhere[pod.uid])
        ]
        await asyncio.gather(
            *(self._send(pod, revision, entries[pod.uid], elsewhere[pod.uid]) for pod in behind)
        )
        return [replace(pod, inventory=self._memory[pod.uid].inventory) for pod in observed]

    def silent(self, pods: Sequence[PodView]) -> list[PodView]:
        """Ready pods that did not answer the last poll."""
        return [
            pod
            for pod in pods
            if pod.ready and pod.alive and not (pod.uid in self._memory and self._memory[pod.uid].answers)
        ]

    async def _ask(self, pod: PodView) -> None:
        assert pod.control_addr is not None
        try:
            inventory = await self.client.inventory(pod.control_addr)
        except PodUnreachable as error:
            log.debug("pod %s: %s", pod.name, error)
            self._missed(pod.uid)
            return
        if inventory.pod_uid != pod.uid:
            # An address is reused as soon as its pod is gone; never take one pod for another.
            log.debug("pod %s: %s answers as another pod, %s", pod.name, pod.control_addr, inventory.pod)
            self._missed(pod.uid)
            return
        self._heard(pod.uid, inventory)

    def _missed(self, uid: str) -> None:
        memory = self._memory.get(uid)
        if memory is None:
            return
        memory.answers = False
        if time.monotonic() - memory.heard > PATIENCE_SECONDS:
            del self._memory[uid]

    def _heard(self, uid: str, inventory: Inventory) -> None:
        memory = self._memory.get(uid)
        if memory is None or memory.boot_id != inventory.boot_id:
            self._memory[uid] = _Memory(inventory.boot_id, inventory, time.monotonic())
            return
        memory.inventory, memory.heard, memory.answers = inventory, time.monotonic(), True

    def _observation(self, pod: PodView) -> PodObservation:
        memory = self._memory[pod.uid]
        assert pod.control_addr is not None
        return PodObservation(
            uid=pod.uid,
            addr=pod.control_addr,
            inventory=memory.inventory,
            ready=pod.ready,
            leaving=not pod.alive or memory.inventory.draining,
            told={entry.uid: entry for entry in memory.told or ()},
        )

    def _is_behind(
        self, pod: PodObservation, entries: Sequence[WantedAdapter], elsewhere: Sequence[str]
    ) -> bool:
        memory = self._memory[pod.uid]
        return (
            memory.told is None
            or memory.revision != memory.inventory.revision
            or (list(memory.told), list(memory.elsewhere)) != (list(entries), list(elsewhere))
        )

    async def _send(
        self, pod: PodObservation, revision: int, entries: Sequence[WantedAdapter], elsewhere: Sequence[str]
    ) -> None:
        wanted = WantedSet(
            fleet=self.fleet, revision=revision, adapters=list(entries), elsewhere=list(elsewhere)
        )
        try:
            inventory = await self.client.send_wanted(pod.addr, wanted)
        except PodUnreachable as error:
            log.warning("pod %s: %s", pod.inventory.pod, error)
            return
        self._heard(pod.uid, inventory)
        memory = self._memory[pod.uid]
        memory.told, memory.elsewhere, memory.revision = tuple(entries), tuple(elsewhere), revision
