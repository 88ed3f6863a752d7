"""Lends adapter slots to requests: a name becomes a slot once, when the request is admitted.

Knows names, the manager and the pool. Must not know HTTP or text. A lease holds a reference on its slot, so
the slot is not refilled before the request has ended.

An `active` adapter is the default of requests that name none. The server resolves it here and never tells the
model: the model's own active adapter could change between admission and prefill, and a request would be
answered by another adapter than its reply names.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from nllb_engine.errors import UnknownAdapter
from nllb_engine.interface.adapter_pool import ModelAdapterPool, ResidentAdapter
from nllb_engine.interface.adapters import ModelAdapters
from nllb_server.adapter_manager import AdapterManager
from nllb_server.problems import ApiError, unavailable, unknown_name
from nllb_server.wire import AdapterRef

_ATTEMPTS = 3
"""Loads of one request: another request's load may take the slot again before it is referenced."""


@dataclass(frozen=True)
class Lease:
    """What a request holds while it runs: a slot and the version in it; -1 and None are the base model."""

    slot: int
    ref: AdapterRef | None


class AdapterLeases:
    """References on slots, by name."""

    def __init__(self, manager: AdapterManager, model: ModelAdapters, pool: ModelAdapterPool) -> None:
        """`model` and `pool` are two views of the manager's model."""
        self._manager = manager
        self._model = model
        self._pool = pool

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
            raise unknown_name("adapter", name, self._manager.names)
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(UnknownAdapter):
                slot, resident = self._pool.acquire_adapter(name)
                if self._manager.belongs(resident):
                    return resident
                self._model.release_adapter_slot(slot)
                raise unavailable("adapter_loading", f"adapter {name!r} is being replaced; retry")
            version = self._manager.version_on_disk(name)
            if version is None:
                raise self._not_here(name)
            await self._manager.load(name, version.digest)
        raise self._no_slot(name)

    def _not_here(self, name: str) -> ApiError:
        failure = self._manager.failure(name)
        if failure is None:
            return unavailable("adapter_loading", f"adapter {name!r} is on its way to this pod; retry", 2)
        reason = f"{failure.problem.reason}: {failure.problem.message}"
        return unavailable("adapter_failed", f"adapter {name!r} could not be brought here: {reason}", 10)

    def _no_slot(self, name: str) -> ApiError:
        failure = self._manager.failure(name)
        if failure is None or failure.problem.reason == "PoolFull":
            return unavailable(
                "pool_full", f"every adapter slot is busy; retry, or raise the slots ({name!r})"
            )
        return self._not_here(name)
