"""The adapters of this pod: takes wanted sets, converges to them, remembers what happened.

Knows the plan and the clock. Must not know HTTP, text or the class of the model. It lives on the event loop;
fetching, hashing, checking and loading happen in a few threads of its own, beside serving.
"""

import asyncio
import contextlib
import logging
import time
from concurrent.futures import ThreadPoolExecutor

from nllb_engine.errors import PoolFull
from nllb_engine.interface.adapter_pool import ModelAdapterPool, ResidentAdapter
from nllb_engine.interface.adapters import ModelAdapters
from nllb_engine.lora.store import AdapterStore
from nllb_server.adapter_inventory import Facts, inventory_adapters, missing_required
from nllb_server.adapter_plan import (
    Action,
    Failure,
    Fetch,
    Held,
    Identity,
    Load,
    Unload,
    Version,
    failed,
    identity,
    plan,
)
from nllb_server.adapter_work import AdapterWorker, Arrival, problem_of
from nllb_server.metrics import ServerMetrics
from nllb_server.problems import ApiError
from nllb_server.settings import ServerSettings
from nllb_server.wire import SHORT_DIGEST, AdapterProblem, InventoryAdapter, WantedAdapter, WantedSet

log = logging.getLogger(__name__)

_RECHECK_SECONDS = 1.0
_THREADS = 4


class AdapterManager:
    """Invariant: at most one action per name is in progress."""

    def __init__(self, store: AdapterStore, settings: ServerSettings, metrics: ServerMetrics) -> None:
        """Nothing is fetched before `attach`; wanted sets are taken at once."""
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._wanted: dict[str, WantedAdapter] = {}
        self._worker: AdapterWorker | None = None
        self._pool: ModelAdapterPool | None = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="nllb-adapters")
        self._observed: dict[Identity, str] = {}
        self._failures: dict[str, Failure] = {}
        self._loaded_for: dict[str, str] = {}  # name in a slot → UID of the adapter it was loaded for
        self._latest: dict[str, Version] = {}  # name → last version that was complete on disk
        self._arrivals: dict[tuple[str, str], Arrival] = {}
        self._sizes: dict[str, int] = {}
        self._actions: dict[str, tuple[Action, asyncio.Task[AdapterProblem | None]]] = {}
        self._changed = asyncio.Event()
        self._converging: asyncio.Task[None] | None = None
        self.revision, self.elsewhere = -1, frozenset[str]()

    # ---- what is wanted

    def accept(self, wanted: WantedSet) -> None:
        """Take a wanted set over; 409 for another fleet's, or one that differs and is not newer."""
        if (mine := self._settings.fleet) and wanted.fleet != mine:
            raise ApiError(409, "wrong_fleet", f"this pod belongs to fleet {mine!r}; ask its operator")
        again = wanted.revision == self.revision and wanted.adapters == list(self._wanted.values())
        if wanted.revision <= self.revision and not again:
            message = f"revision {wanted.revision} is not newer than {self.revision}, which this pod has"
            raise ApiError(409, "stale_revision", message)
        self.revision, self.elsewhere = wanted.revision, frozenset(wanted.elsewhere)
        self._take(wanted.adapters)

    def expect(self, wanted: WantedSet) -> None:
        """Know what will be wanted, for readiness and answers, but fetch nothing yet."""
        self._take([adapter.model_copy(update={"sources": []}) for adapter in wanted.adapters])

    def wanted(self, name: str) -> WantedAdapter | None:
        """The wanted adapter of that name."""
        return self._wanted.get(name)

    @property
    def names(self) -> list[str]:
        """All wanted names, sorted."""
        return sorted(self._wanted)

    @property
    def active(self) -> str | None:
        """The name that answers requests which name none."""
        return next((name for name, adapter in self._wanted.items() if adapter.active), None)

    def _take(self, adapters: list[WantedAdapter]) -> None:
        before, self._wanted = self._wanted, {adapter.name: adapter for adapter in adapters}
        kept = {name for name, one in self._wanted.items() if name in before and before[name].uid == one.uid}
        self._failures = {name: one for name, one in self._failures.items() if name in kept}
        self._arrivals = {key: one for key, one in self._arrivals.items() if key[0] in kept}
        self._latest = {name: one for name, one in self._latest.items() if name in kept}
        self._pin()
        self._changed.set()

    def _pin(self) -> None:
        if self._pool is not None:
            self._pool.pin_adapters({name for name, one in self._wanted.items() if one.pinned or one.active})

    # ---- what is held

    @property
    def promote_calls(self) -> int:
        """Calls of promote_lora_from_peer since the start."""
        return self._worker.promote_calls if self._worker else 0

    @property
    def stored(self) -> list[str]:
        """Digests on disk, sorted."""
        return self._store.digests()

    def residents(self) -> list[ResidentAdapter]:
        """The adapters in slots."""
        return self._pool.resident_adapters() if self._pool else []

    def held(self) -> Held:
        """A snapshot for the plan, the inventory and readiness."""
        uids = self._loaded_for
        return Held(
            stored=frozenset(self._store.digests()),
            loaded={one.name: Version(uids.get(one.name, ""), one.digest) for one in self.residents()},
            busy=frozenset(self._actions),
            observed=self._observed,
            failures=self._failures,
        )

    def gauges(self) -> dict[str, float]:
        """Numbers for the metrics."""
        residents = self.residents()
        return {
            "nllb_adapters_wanted": len(self._wanted),
            "nllb_adapters_stored": len(self._store.digests()),
            "nllb_adapters_loaded": len(residents),
            "nllb_adapter_refs": sum(one.refs for one in residents),
        }

    def missing_required(self) -> list[str]:
        """Names that readiness waits for."""
        return missing_required(self._wanted.values(), self.held(), self._fetching())

    def inventory(self) -> list[InventoryAdapter]:
        """The state of each wanted adapter, sorted by name."""
        held = self.held()
        for digest in held.stored - self._sizes.keys():
            self._sizes[digest] = self._store.stored_bytes(digest)
        facts = Facts(held, self.residents(), self._fetching(), self._arrivals, self._sizes)
        return inventory_adapters(self._wanted.values(), facts)

    def _fetching(self) -> set[str]:
        return {name for name, (action, _) in self._actions.items() if isinstance(action, Fetch)}

    def version_on_disk(self, name: str) -> Version | None:
        """What a request for `name` is to be answered with: the wanted version, else the one before it."""
        adapter = self._wanted.get(name)
        if adapter is None:
            return None
        digest = self._digest_of(adapter)
        if digest is not None and self._store.path(digest):
            self._latest[name] = Version(adapter.uid, digest)
        version = self._latest.get(name)
        known = version is not None and version.uid == adapter.uid and self._store.path(version.digest)
        return version if known else None

    def answers(self, resident: ResidentAdapter) -> bool:
        """Whether a request for this name is to be answered with what is in the slot.

        That is the wanted version as soon as it is on disk, and until then the one before it of the same
        LoraAdapter; never what another LoraAdapter left under the name.
        """
        adapter = self._wanted.get(resident.name)
        if adapter is not None and resident.digest == self._digest_of(adapter):
            return True
        version = self.version_on_disk(resident.name)
        return version is not None and version.digest == resident.digest

    def _digest_of(self, adapter: WantedAdapter) -> str | None:
        return adapter.digest or self._observed.get(identity(adapter))

    def failure(self, name: str) -> Failure | None:
        """The last attempt for the adapter that now has `name`, when it failed."""
        failure, adapter = self._failures.get(name), self._wanted.get(name)
        return failure if failure and adapter and failure.adapter.uid == adapter.uid else None

    # ---- converging

    def attach(self, model: ModelAdapters, pool: ModelAdapterPool) -> None:
        """The model is there: converge from now on. `model` and `pool` are two views of it."""
        self._pool = pool
        self._worker = AdapterWorker(
            model,
            pool,
            self._store,
            volumes_dir=self._settings.volumes_dir,
            max_bytes=self._settings.max_adapter_bytes,
        )
        self._pin()
        self._converging = asyncio.create_task(self._converge(), name="converge")

    async def close(self) -> None:
        """Stop converging; an action in progress ends by its own deadline and changes nothing here."""
        if self._converging:
            self._converging.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._converging
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def load(self, name: str, digest: str, seconds: float) -> AdapterProblem | None:
        """Load a version that is on disk into a slot; waits instead while another action for `name` runs.

        Returns after `seconds` at the latest: the problem if this load has failed. What is in the slot then,
        only the pool can say.
        """
        action = Load(self._wanted[name], digest)
        if name not in self._actions:
            self._start(action)
        running, task = self._actions[name]
        await asyncio.wait([task], timeout=seconds)
        return task.result() if task.done() and running == action else None

    async def _converge(self) -> None:
        while True:
            self._changed.clear()
            for action in plan(self._wanted.values(), self.held(), time.monotonic()):
                self._start(action)
            # Not wait_for: before Python 3.12 it swallows a cancellation that meets the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RECHECK_SECONDS):
                    await self._changed.wait()

    def _start(self, action: Action) -> None:
        name = action.name if isinstance(action, Unload) else action.adapter.name
        self._actions[name] = (
            action,
            asyncio.create_task(self._perform(name, action), name=f"adapter {name}"),
        )

    async def _perform(self, name: str, action: Action) -> AdapterProblem | None:
        assert self._worker is not None, "actions start after attach"
        loop = asyncio.get_running_loop()
        try:
            arrival = await loop.run_in_executor(self._threads, self._worker.perform, action)
            if isinstance(action, Unload) or arrival is None:
                self._loaded_for.pop(name, None)
                return None
            return self._arrived(action, arrival)
        except Exception as error:
            return self._failed(action, error)
        finally:
            del self._actions[name]
            self._changed.set()

    def _arrived(self, action: Fetch | Load, arrival: Arrival) -> AdapterProblem | None:
        adapter, name = action.adapter, action.adapter.name
        if adapter.digest is None:
            self._observed[identity(adapter)] = arrival.digest
        if isinstance(action, Fetch):
            self._arrivals[name, arrival.digest] = arrival
        self._latest[name] = Version(adapter.uid, arrival.digest)
        if not arrival.loaded and isinstance(action, Load):
            return self._failed(action, PoolFull("every slot is busy or pinned; it is tried again"))
        if arrival.loaded:
            self._loaded_for[name] = adapter.uid
        if arrival.digest == self._digest_of(adapter):
            self._failures.pop(name, None)
        self._count(arrival.source, "ok", arrival.seconds)
        log.info(
            "adapter %s@%s from %s in %.3f s: %s",
            name,
            arrival.digest[:SHORT_DIGEST],
            arrival.address or arrival.source,
            arrival.seconds,
            "loaded" if arrival.loaded else "stored",
        )
        return None

    def _failed(self, action: Action, error: Exception) -> AdapterProblem:
        problem = problem_of(error)
        if isinstance(action, Unload):
            log.error("adapter %s could not be unloaded: %s", action.name, problem.message)
            return problem
        adapter, before = action.adapter, self._failures.get(action.adapter.name)
        self._failures[adapter.name] = failed(adapter, problem, before, time.monotonic())
        self._count("disk" if isinstance(action, Load) else adapter.sources[0].kind, "failed", None)
        log.warning("adapter %s: %s: %s", adapter.name, problem.reason, problem.message)
        return problem

    def _count(self, source: str, result: str, seconds: float | None) -> None:
        self._metrics.promotions.labels(source, result).inc()
        if seconds is not None:
            self._metrics.promotion_seconds.labels(source).observe(seconds)
