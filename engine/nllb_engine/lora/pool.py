"""The pool: slots on the device, and the one lock that makes names, counts and writes agree.

Knows the slot table and the tensor tables. Must not know files or where adapters come from. The lock is
held for table steps only; a slot is written outside it, while it is LOADING and nobody can reference it.
"""

import threading
from collections.abc import Set

from nllb_engine.interface.adapter_pool import ResidentAdapter
from nllb_engine.lora.slot_table import Claim, SlotTable
from nllb_engine.lora.tables import LoraTables, PreparedAdapter


class LoraPool:
    """Safe from any thread. Release a reference only when no kernel reads the slot any more."""

    def __init__(self, tables: LoraTables) -> None:
        """All slots empty."""
        self._tables = tables
        self._table = SlotTable(tables.slots)
        self._lock = threading.Lock()

    def load(
        self, name: str, digest: str, adapter: PreparedAdapter, *, activate: bool, slot: int | None = None
    ) -> tuple[int, str | None]:
        """Write the adapter into a victim (or exactly `slot`) and switch `name` to it in one step.

        Returns the slot and the other name that lost it. PoolFull: nothing changed. If `name` holds `digest`
        already, nothing is written.
        """
        with self._lock:
            found = self._table.find(name, digest)
            if found is not None and slot in (None, found):
                if activate:
                    self._table.activate(name)
                return found, None
            if slot is None:
                claim = self._table.claim(name, digest)
            else:
                claim = self._table.claim_slot(slot, name, digest)
        self._write(claim, adapter)
        with self._lock:
            self._table.commit(claim, adapter.rank, adapter.bytes, activate=activate)
        return claim.slot, claim.evicted

    def _write(self, claim: Claim, adapter: PreparedAdapter) -> None:
        try:
            self._tables.fill(claim.slot, adapter)
        except BaseException:
            with self._lock:
                self._table.abandon(claim)
            raise

    def find(self, name: str, digest: str, *, activate: bool) -> int | None:
        """The slot of `name` if it holds `digest`, made the active one on request."""
        with self._lock:
            found = self._table.find(name, digest)
            if found is not None and activate:
                self._table.activate(name)
            return found

    def activate(self, name: str) -> None:
        """Selector -1 means `name` from now on; UnknownAdapter when it is not resident."""
        with self._lock:
            self._table.activate(name)

    def identity(self, slot: int) -> int:
        """64-bit cache key of what `slot` computes; see SlotTable."""
        with self._lock:
            return self._table.identity(slot)

    def acquire(self, slot: int) -> int:
        """Count a reference on `slot` (-1: the active adapter's); the resolved slot, or -1."""
        with self._lock:
            return self._table.acquire(slot)

    def release(self, slot: int) -> None:
        """Give one reference back."""
        with self._lock:
            self._table.release(slot)

    def resolve(self, name: str) -> int:
        """The slot of `name`; UnknownAdapter when it is not resident."""
        with self._lock:
            return self._table.resolve(name)

    def acquire_name(self, name: str) -> ResidentAdapter:
        """Resolve `name` and count a reference in one step; UnknownAdapter when it is not resident."""
        with self._lock:
            slot = self._table.acquire(self._table.resolve(name))
            return self._resident(slot)

    def unload(self, name: str) -> bool:
        """Forget `name`; False when it was not resident."""
        with self._lock:
            return self._table.unload(name)

    def pin(self, names: Set[str]) -> None:
        """The whole set of names that keep their slots."""
        with self._lock:
            self._table.pin(names)

    def residents(self) -> list[ResidentAdapter]:
        """The adapters that a name leads to, sorted by name."""
        with self._lock:
            return [self._resident(self._table.resolve(name)) for name in self._table.names]

    def _resident(self, slot: int) -> ResidentAdapter:
        one, table = self._table.slots[slot], self._table
        return ResidentAdapter(
            name=one.name, digest=one.digest, slot=slot, generation=one.generation, refs=one.refs,
            pinned=one.name in table.pinned, rank=one.rank, bytes=one.bytes, active=one.name == table.active,
        )  # fmt: skip
