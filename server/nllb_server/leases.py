"""Lends adapter slots to requests: a name becomes a slot once, when the request is admitted.

Knows names, the manager and the pool. Must not know HTTP or text. A lease holds a reference on its slot, so
the slot is not refilled before the request has ended.

An `active` adapter is the default of requests that name none. The server resolves it here and never tells the
model: the model's own active adapter could change between admission and prefill, and a request would be
answered by another adapter than its reply names.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nllb_engine.errors import UnknownAdapter
from nllb_engine.interface.adapter_pool import ModelAdapterPool, ResidentAdapter
from nllb_engine.interface.adapters import ModelAdapters
from nllb_server.adapter_manager import AdapterManager
from nllb_server.problems import ApiError, misdirected, unavailable, unknown_name
from nllb_server.wire import AdapterProblem, AdapterRef

PATIENCE_SECONDS = 5.0
"""How long a request waits until its adapter is loaded, or a slot is free, before it is sent away."""
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Lease:
    """What a request holds while it runs: a slot and the version in it; -1 and None are the base model."""

    slot: int
    ref: AdapterRef | None


class AdapterLeases:
    """References on slots, by name."""

    def __init__(
        self, manager: AdapterManager, model: ModelAdapters, pool: ModelAdapterPool, slots: int
    ) -> None:
        """`model` and `pool` are two views of the manager's model, which has `slots` slots."""
        self._manager = manager
        self._model = model
        self._pool = pool
        self._slots = slots

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None) -> AsyncIterator[Lease]:
        """Hold the slot of `name`, loading it from disk first where needed; None: the default.

        Raises ApiError: 404 for a name that nobody wants here, 503 while it is on its way or no slot is free.
        """
        resident = await self._default() if name is None else await self._acquire(name)
        if resident is None:
            yield Lease(-1, None)
            return
        try:
            yield Lease(resident.slot, AdapterRef(name=resident.name, digest=resident.digest))
        finally:
            self._model.release_adapter_slot(resident.slot)

    async def _default(self) -> ResidentAdapter | None:
        """The active adapter; None, the base model, until its first version has arrived on this pod."""
        name = self._manager.active
        if name is None or self._manager.version_on_disk(name) is None:
            return None
        return await self._acquire(name)

    async def _acquire(self, name: str) -> ResidentAdapter:
        if self._manager.wanted(name) is None:
            if name in self._manager.elsewhere:
                raise misdirected("adapter", name)
            raise unknown_name("adapter", name, self._manager.names)
        give_up = time.monotonic() + PATIENCE_SECONDS
        slots_are_full = False
        while (left := give_up - time.monotonic()) > 0:
            if (resident := self._reference(name)) is not None:
                return resident
            version = self._manager.version_on_disk(name)
            if version is None:
                raise self._not_here(name)
            slots_are_full = not self._slot_in_sight()
            if not slots_are_full:
                problem = await self._manager.load(name, version.digest, left)
                slots_are_full = problem is not None and problem.reason == "PoolFull"
                if problem is not None and not slots_are_full:
                    raise _failed(name, problem)
            if slots_are_full:
                await asyncio.sleep(_POLL_SECONDS)
        if slots_are_full:
            raise unavailable(
                "pool_full", f"no slot became free for adapter {name!r}; retry, or raise the slots"
            )
        raise unavailable("adapter_loading", f"adapter {name!r} is still being loaded; retry", 2)

    def _reference(self, name: str) -> ResidentAdapter | None:
        """Take a reference, when the slot holds what a request for `name` is to be answered with now."""
        try:
            slot, resident = self._pool.acquire_adapter(name)
        except UnknownAdapter:
            return None
        if self._manager.answers(resident):
            return resident
        self._model.release_adapter_slot(slot)
        return None

    def _slot_in_sight(self) -> bool:
        """Whether a load may succeed; a guess that spares the check of an adapter's files in vain."""
        residents = self._pool.resident_adapters()
        return len(residents) < self._slots or any(one.refs == 0 and not one.pinned for one in residents)

    def _not_here(self, name: str) -> ApiError:
        failure = self._manager.failure(name)
        if failure is None:
            return unavailable("adapter_loading", f"adapter {name!r} is on its way to this pod; retry", 2)
        return _failed(name, failure.problem)


def _failed(name: str, problem: AdapterProblem) -> ApiError:
    reason = f"{problem.reason}: {problem.message}"
    return unavailable("adapter_failed", f"adapter {name!r} could not be brought here: {reason}", 10)
