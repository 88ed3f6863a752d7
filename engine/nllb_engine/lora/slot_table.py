"""Which adapter is in which slot, and who may take one: decisions and counts, nothing else.

Knows names, digests, references and ticks. Must not know tensors, files, locks or threads: `LoraPool`
calls it under its lock. States of a slot: empty → loading → resident → (name moved on, references left)
retired → empty.
"""

import hashlib
from collections.abc import Set
from dataclasses import dataclass
from enum import Enum

from nllb_engine.errors import InvalidRequest, PoolFull, UnknownAdapter


class SlotState(Enum):
    """EMPTY: nobody's. LOADING: being written. RESIDENT: a name leads here. RETIRED: only running rows do."""

    EMPTY = "empty"
    LOADING = "loading"
    RESIDENT = "resident"
    RETIRED = "retired"


@dataclass
class Slot:
    """One slot. `generation` grows with every new content; `last_used` is a tick, larger is later."""

    state: SlotState = SlotState.EMPTY
    name: str = ""
    digest: str = ""
    rank: int = 0
    bytes: int = 0
    refs: int = 0
    generation: int = 0
    last_used: int = 0


@dataclass(frozen=True)
class Claim:
    """A slot taken for writing, for `name`; `evicted` is the other name that lost it."""

    slot: int
    name: str
    digest: str
    evicted: str | None


class SlotTable:
    """Invariants: a name leads to at most one slot; only a slot without references is ever claimed."""

    def __init__(self, slots: int) -> None:
        """All empty."""
        self.slots = [Slot() for _ in range(slots)]
        self.active: str | None = None
        self.pinned: frozenset[str] = frozenset()
        self._names: dict[str, int] = {}
        self._tick = 0

    # ---- names

    @property
    def names(self) -> list[str]:
        """Resident names, sorted."""
        return sorted(self._names)

    def resolve(self, name: str) -> int:
        """The slot that `name` leads to; UnknownAdapter when there is none."""
        slot = self._names.get(name)
        if slot is None:
            raise UnknownAdapter(name, self.names)
        return slot

    def find(self, name: str, digest: str) -> int | None:
        """The slot of `name` if it holds `digest`."""
        slot = self._names.get(name)
        return slot if slot is not None and self.slots[slot].digest == digest else None

    def activate(self, name: str) -> None:
        """`name` becomes what selector -1 means; UnknownAdapter when it is not resident."""
        self._touch(self.resolve(name))
        self.active = name

    def pin(self, names: Set[str]) -> None:
        """The whole set of names that keep their slots."""
        self.pinned = frozenset(names)

    def unload(self, name: str) -> bool:
        """The name leads nowhere; its slot is empty once its references are gone. False: not resident."""
        slot = self._names.pop(name, None)
        if slot is None:
            return False
        if self.active == name:
            self.active = None
        self._retire(slot)
        return True

    # ---- references

    def acquire(self, slot: int) -> int:
        """Count a reference on `slot` (-1: the active adapter's); -1 when nothing is there to count."""
        if slot == -1 and self.active is not None:
            slot = self.resolve(self.active)
        if not 0 <= slot < len(self.slots) or self.slots[slot].state in (SlotState.EMPTY, SlotState.LOADING):
            return -1
        self.slots[slot].refs += 1
        self._touch(slot)
        return slot

    def release(self, slot: int) -> None:
        """Give one reference back; never below 0, and nothing for a slot that is none."""
        if not 0 <= slot < len(self.slots) or self.slots[slot].refs == 0:
            return
        self.slots[slot].refs -= 1
        if self.slots[slot].state is SlotState.RETIRED and self.slots[slot].refs == 0:
            self._empty(slot)

    def identity(self, slot: int) -> int:
        """64-bit cache key of what `slot` computes (-1: the active adapter); 0 for the base model only."""
        if slot == -1:
            if self.active is None:
                return 0
            slot = self.resolve(self.active)
        if not 0 <= slot < len(self.slots) or self.slots[slot].state in (SlotState.EMPTY, SlotState.LOADING):
            raise InvalidRequest(f"slot {slot} holds no adapter; resolve the adapter's name again")
        one = self.slots[slot]
        key = f"{one.name}\0{one.digest}\0{one.generation}".encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:8], "big") or 1

    # ---- writing

    def claim(self, name: str, digest: str) -> Claim:
        """Take a victim for `name`: an empty slot, else the least recently used idle one.

        Slots of pinned names, the active one and this name's own slot are spared; as a last resort the
        name's own idle slot, unless it is active, so that a full pool can still be updated. PoolFull when
        none is left.
        """
        return self._take(self._victim(name), name, digest)

    def claim_slot(self, slot: int, name: str, digest: str) -> Claim:
        """Take exactly `slot`; PoolFull when it is referenced, being written, or another name's to keep."""
        if not 0 <= slot < len(self.slots):
            raise InvalidRequest(f"slot {slot} does not exist; slots are 0 to {len(self.slots) - 1}")
        own = self._names.get(name) == slot and name != self.active
        if not own and not self._free_to_take(slot):
            raise PoolFull(
                f"slot {slot} is busy, pinned or active; try again when its requests have finished"
            )
        if self.slots[slot].refs:
            raise PoolFull(f"slot {slot} is in use; try again when its requests have finished")
        return self._take(slot, name, digest)

    def commit(self, claim: Claim, rank: int, size: int, *, activate: bool) -> None:
        """The slot is written: `claim.name` leads to it from now on, and its old slot is retired."""
        one = self.slots[claim.slot]
        old = self._names.get(claim.name)
        if old is not None:
            self._retire(old)
        one.state, one.rank, one.bytes = SlotState.RESIDENT, rank, size
        one.generation += 1
        self._names[claim.name] = claim.slot
        self._touch(claim.slot)
        if activate:
            self.active = claim.name

    def abandon(self, claim: Claim) -> None:
        """The slot was not written after all; it is empty."""
        self._empty(claim.slot)

    def _victim(self, name: str) -> int:
        empty = next((i for i, one in enumerate(self.slots) if one.state is SlotState.EMPTY), None)
        if empty is not None:
            return empty
        own = self._names.get(name)
        idle = [i for i in range(len(self.slots)) if i != own and self._free_to_take(i)]
        if idle:
            return min(idle, key=lambda i: self.slots[i].last_used)
        if own is not None and name != self.active and self.slots[own].refs == 0:
            return own
        raise PoolFull(
            f"all {len(self.slots)} adapter slots are busy, pinned or active; try again when a request "
            "has finished, or give the fleet more slots"
        )

    def _free_to_take(self, slot: int) -> bool:
        one = self.slots[slot]
        if one.state is SlotState.EMPTY:
            return True
        kept = one.name in self.pinned or one.name == self.active
        return one.state is SlotState.RESIDENT and one.refs == 0 and not kept

    def _take(self, slot: int, name: str, digest: str) -> Claim:
        one = self.slots[slot]
        evicted = one.name if one.state is SlotState.RESIDENT else None
        if evicted is not None:
            del self._names[evicted]
        one.state, one.name, one.digest = SlotState.LOADING, name, digest
        return Claim(slot, name, digest, None if evicted == name else evicted)

    def _retire(self, slot: int) -> None:
        self.slots[slot].state = SlotState.RETIRED
        if self.slots[slot].refs == 0:
            self._empty(slot)

    def _empty(self, slot: int) -> None:
        one = self.slots[slot]
        self.slots[slot] = Slot(generation=one.generation, last_used=one.last_used)

    def _touch(self, slot: int) -> None:
        self._tick += 1
        self.slots[slot].last_used = self._tick
