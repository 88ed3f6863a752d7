"""The blocking half of adapter management: performs one planned action in a thread.

Knows the model's adapter calls, the store and the origins. Must not know the event loop, HTTP, or what is
wanted beyond the action at hand.
"""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nllb_engine.errors import AdapterRejected, DigestMismatch, EngineError, PeerUnavailable, PoolFull
from nllb_engine.interface.adapter_pool import ModelAdapterPool
from nllb_engine.interface.adapters import ModelAdapters
from nllb_engine.lora.store import AdapterStore
from nllb_server.adapter_plan import Action, Fetch, Load, Unload
from nllb_server.origins import OriginUnavailable, origin_copy
from nllb_server.wire import AdapterProblem, Source, WantedAdapter

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrival:
    """How a version came here: `seconds` for fetch, check and load; `loaded` False: the pool was full."""

    digest: str
    source: Literal["origin", "peer", "disk"]
    address: str | None
    seconds: float
    loaded: bool


class AdapterWorker:
    """Performs actions; safe to call from several threads for different names."""

    def __init__(
        self,
        model: ModelAdapters,
        pool: ModelAdapterPool,
        store: AdapterStore,
        *,
        volumes_dir: Path,
        max_bytes: int,
    ) -> None:
        """`model` and `pool` are two views of one model; `max_bytes` bounds what an origin may hold."""
        self._model = model
        self._pool = pool
        self._store = store
        self._volumes_dir = volumes_dir
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self.promote_calls = 0

    def perform(self, action: Action) -> Arrival | None:
        """Do it, blocking; None after an unload. Raises what `problem_of` explains."""
        if isinstance(action, Unload):
            self._pool.unload_adapter(action.name)
            return None
        began = time.monotonic()
        if isinstance(action, Load):
            loaded = self._load_stored(action.digest, action.adapter.name)
            return Arrival(action.digest, "disk", None, time.monotonic() - began, loaded)
        return self._fetch(action, began)

    def _fetch(self, action: Fetch, began: float) -> Arrival:
        error: Exception = PeerUnavailable("no source was given")
        for source in action.adapter.sources:
            try:
                if source.kind == "origin":
                    digest, loaded = self._from_origin(action.adapter)
                    return Arrival(digest, "origin", None, time.monotonic() - began, loaded)
                if source.kind == "peer":
                    digest, loaded = self._from_peer(action.adapter, source)
                    return Arrival(digest, "peer", source.addr, time.monotonic() - began, loaded)
            except (AdapterRejected, DigestMismatch):
                raise  # the content is at fault: another source would bring the same
            except (EngineError, OriginUnavailable, OSError) as failure:
                error = failure
        raise error

    def _from_origin(self, adapter: WantedAdapter) -> tuple[str, bool]:
        with origin_copy(
            adapter.uri,
            adapter.digest,
            self._store,
            volumes_dir=self._volumes_dir,
            max_bytes=self._max_bytes,
        ) as (folder, digest):
            return digest, self._load(folder, adapter.name)

    def _from_peer(self, adapter: WantedAdapter, source: Source) -> tuple[str, bool]:
        assert adapter.digest is not None and source.addr is not None, "wire.py checks both"
        with self._lock:
            self.promote_calls += 1
        try:
            self._model.promote_lora_from_peer(source.addr, adapter.digest, adapter.name, activate=False)
        except PoolFull:
            return adapter.digest, False
        except DigestMismatch as error:
            raise PeerUnavailable(f"{source.addr} sent other files than those asked for: {error}") from error
        return adapter.digest, True

    def _load_stored(self, digest: str, name: str) -> bool:
        folder = self._store.path(digest)
        if folder is not None:
            try:
                return self._load(folder, name)
            except AdapterRejected:
                if self._store.path(digest) is not None:
                    raise
                # The model found the files damaged and removed them: the disk is at fault, not the adapter.
        raise OriginUnavailable("the adapter's files on disk were damaged or lost; they are fetched again")

    def _load(self, folder: Path, name: str) -> bool:
        """Check, store and load; False when no slot is free, which leaves the files in the store."""
        try:
            self._model.promote_lora_from_disk(folder, name, activate=False)
        except PoolFull:
            return False
        return True


def problem_of(error: Exception) -> AdapterProblem:
    """What to report about a failed action, and whether its content or this pod is at fault."""
    match error:
        case AdapterRejected():
            return AdapterProblem(reason=error.reason, message=error.detail, fault="content")
        case DigestMismatch():
            return AdapterProblem(reason="DigestMismatch", message=str(error), fault="content")
        case PoolFull() | PeerUnavailable() | OriginUnavailable():
            return AdapterProblem(reason=type(error).__name__, message=str(error), fault="pod")
        case OSError():
            message = f"the disk or the network failed: {error.strerror or type(error).__name__}"
            return AdapterProblem(reason="DiskError", message=message, fault="pod")
        case _:
            log.error("an adapter action failed", exc_info=error)
            message = f"{type(error).__name__}; the pod's log says more"
            return AdapterProblem(reason="InternalError", message=message, fault="pod")
