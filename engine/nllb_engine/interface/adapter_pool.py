"""ModelAdapterPool: what the seed's interface lacks to serve many adapters. Knows no file format."""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass


@dataclass(frozen=True)
class ResidentAdapter:
    """One adapter in a slot: `refs` counts queued and running sequences, `bytes` its memory in the slot."""

    name: str
    digest: str
    slot: int
    generation: int
    refs: int
    pinned: bool
    rank: int
    bytes: int
    active: bool


class ModelAdapterPool(ABC):
    """Our own capability beside the seed's ModelAdapters: names, pins and removal.

    Every method may be called from any thread.
    """

    @abstractmethod
    def resident_adapters(self) -> list[ResidentAdapter]:
        """The adapters that a name leads to now, sorted by name."""

    @abstractmethod
    def resolve_adapter(self, name: str) -> int:
        """The slot that `name` leads to now; UnknownAdapter when it is not resident.

        Resolve and reference in one step with `acquire_adapter`, or the slot may change hands between.
        """

    @abstractmethod
    def acquire_adapter(self, name: str) -> tuple[int, ResidentAdapter]:
        """Resolve `name` and take a reference on its slot in one step; UnknownAdapter when not resident.

        Give the slot to `release_adapter_slot` when the request has ended.
        """

    @abstractmethod
    def unload_adapter(self, name: str) -> bool:
        """Forget `name`; its slot is empty once its references are gone. False: it was not resident."""

    @abstractmethod
    def pin_adapters(self, names: Set[str]) -> None:
        """Set the whole set of names whose slots are never chosen as victims."""
