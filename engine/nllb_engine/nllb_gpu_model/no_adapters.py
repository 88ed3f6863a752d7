"""ModelAdapterPool of a model without adapter slots: nothing is resident."""

from collections.abc import Set

from nllb_engine.errors import UnknownAdapter
from nllb_engine.interface import ResidentAdapter
from nllb_engine.nllb_gpu_model.base import NllbBase


class NoAdapters(NllbBase):
    """Every name is unknown."""

    def resident_adapters(self) -> list[ResidentAdapter]:
        """None."""
        return []

    def resolve_adapter(self, name: str) -> int:
        """UnknownAdapter."""
        raise UnknownAdapter(name, [])

    def acquire_adapter(self, name: str) -> tuple[int, ResidentAdapter]:
        """UnknownAdapter."""
        raise UnknownAdapter(name, [])

    def unload_adapter(self, name: str) -> bool:
        """False."""
        return False

    def pin_adapters(self, names: Set[str]) -> None:
        """Nothing to pin."""
