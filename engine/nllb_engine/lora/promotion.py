"""Promotion: from a peer or a folder through digest, gate and store into a slot, then one atomic switch.

Knows the order of the steps. Must not know transports (that is AdapterSource), requests or the forward
pass. Runs in the caller's thread, beside serving; whatever fails before the switch leaves every name
where it was.
"""

import logging
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from nllb_engine.errors import AdapterRejected, DigestMismatch, InvalidRequest, UnsupportedByModel
from nllb_engine.interface.values import PeftAdapterConfig
from nllb_engine.layers import Linear
from nllb_engine.lora.adapter_file import read_adapter
from nllb_engine.lora.digest import folder_digest, is_digest
from nllb_engine.lora.pool import LoraPool
from nllb_engine.lora.single_flight import SingleFlight
from nllb_engine.lora.source import AdapterSource
from nllb_engine.lora.store import AdapterStore, copy_adapter_files
from nllb_engine.lora.tables import LoraTables, PreparedAdapter

log = logging.getLogger(__name__)


class AdapterPromoter:
    """Brings adapters into `pool`. Concurrent calls for the same name and digest are one."""

    def __init__(
        self,
        linears: Iterable[Linear],
        *,
        slots: int,
        max_rank: int,
        store: AdapterStore | None = None,
        source: AdapterSource | None = None,
    ) -> None:
        """Take the slots' memory. Without a `store` a temporary one is used; without a `source` no peer."""
        self._tables = LoraTables(linears, slots, max_rank)
        self.pool = LoraPool(self._tables)
        self._made_store = store
        self._lock = threading.Lock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._source = source
        self._closed = False
        self._flights: SingleFlight[tuple[int, str | None]] = SingleFlight()

    @property
    def _store(self) -> AdapterStore:
        """The given store, or a temporary one that the first promotion makes."""
        with self._lock:
            if self._made_store is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="nllb-adapters-")
                self._made_store = AdapterStore(Path(self._temporary.name))
            return self._made_store

    def close(self) -> None:
        """Give the slots' memory back and remove the temporary store; nothing can be promoted any more."""
        self._closed = True
        self._tables.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def from_peer(
        self, peer_addr: str, digest: str, name: str, peft: PeftAdapterConfig | None, *, activate: bool
    ) -> tuple[int, str | None]:
        """See ModelAdapters.promote_lora_from_peer. What is stored or resident is not transferred."""
        if not is_digest(digest):
            raise AdapterRejected("BadDigest", f"{digest[:80]!r} is not a lowercase hex SHA-256")

        def work() -> tuple[int, str | None]:
            found = self.pool.find(name, digest, activate=activate)
            if found is not None:
                return found, None
            prepared = self._stored(digest, peft) or self._fetched(peer_addr, digest, peft)
            return self.pool.load(name, digest, prepared, activate=activate)

        return self._fly((name, digest), name, activate, work)

    def from_disk(
        self, folder: Path, name: str, *, activate: bool, digest: str | None = None, slot: int | None = None
    ) -> tuple[int, str | None]:
        """See ModelAdapters.promote_lora_from_disk, and swap_lora_from_disk where a `slot` is given.

        The folder is copied into the store and the copy is hashed, so that what is loaded is what was hashed.
        """
        stored = self._store.path(folder.name) if is_digest(folder.name) else None
        if stored is not None and stored == folder:
            if digest not in (None, folder.name):
                raise DigestMismatch(str(digest), folder.name)
            digest = folder.name

        def work() -> tuple[int, str | None]:
            if digest is not None and slot is None:
                resident = self.pool.find(name, digest, activate=activate)
                if resident is not None:
                    return resident, None
            found, prepared = self._from_folder(folder, digest)
            return self.pool.load(name, found, prepared, activate=activate, slot=slot)

        return self._fly((name, digest or folder, slot), name, activate, work)

    def _fly(
        self, key: tuple[object, ...], name: str, activate: bool, work: Callable[[], tuple[int, str | None]]
    ) -> tuple[int, str | None]:
        if self._closed:
            raise InvalidRequest("the model was torn down; build a new one")
        result, ours = self._flights.do(key, work)
        if activate and not ours:
            self.pool.activate(name)
        return result

    def _from_folder(self, folder: Path, digest: str | None) -> tuple[str, PreparedAdapter]:
        if digest is not None and (prepared := self._stored(digest, None)):
            return digest, prepared
        with self._store.staging() as staged:
            copy_adapter_files(folder, staged)
            wanted = folder_digest(staged) if digest is None else digest
            return wanted, self._kept(staged, wanted, None)

    def _fetched(self, peer_addr: str, digest: str, peft: PeftAdapterConfig | None) -> PreparedAdapter:
        if self._source is None:
            raise UnsupportedByModel(
                "promote_lora_from_peer", "it was built without an adapter source; use promote_lora_from_disk"
            )
        with self._store.staging() as staged:
            self._source.fetch(peer_addr, digest, staged)
            return self._kept(staged, digest, peft)

    def _kept(self, staged: Path, digest: str, peft: PeftAdapterConfig | None) -> PreparedAdapter:
        """Digest first, then the gate, then the store; a folder that fails either is never seen there."""
        checked: list[PreparedAdapter] = []
        self._store.add_verified(staged, digest, lambda folder: checked.append(self._checked(folder, peft)))
        return checked[0]

    def _stored(self, digest: str, peft: PeftAdapterConfig | None) -> PreparedAdapter | None:
        """From the store, hashed again; what is damaged or refused there is removed."""
        folder = self._store.path(digest)
        if folder is None:
            return None
        if folder_digest(folder) != digest:
            log.warning("the stored files of adapter %s are damaged; they are removed", digest)
            self._store.remove(digest)
            return None
        try:
            return self._checked(folder, peft)
        except AdapterRejected as error:
            if error.reason != "ConfigMismatch":
                self._store.remove(digest)
            raise

    def _checked(self, folder: Path, peft: PeftAdapterConfig | None) -> PreparedAdapter:
        content = read_adapter(folder, self._tables.shapes, self._tables.max_rank)
        if peft is not None and peft != content.config:
            raise AdapterRejected(
                "ConfigMismatch",
                "the given PEFT configuration is not that of the adapter's "
                "adapter_config.json; leave it out or read it from that file",
            )
        return self._tables.prepare(content)
