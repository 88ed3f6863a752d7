"""ModelAdapters and ModelAdapterPool of NllbGpuModel: many adapters in slots, chosen per row.

Knows the promoter and its pool. Must not know files or matrices. Every call is safe from any thread.
"""

from collections.abc import Set
from pathlib import Path

from nllb_engine.interface import PeftAdapterConfig, ResidentAdapter
from nllb_engine.nllb_gpu_model.base import NllbBase


class NllbAdapters(NllbBase):
    """The seed's seven methods, names and pins, over `adapters`."""

    def set_active_lora(self, name: str) -> None:
        """Selector -1 means `name` from the next prefill on; UnknownAdapter when it is not resident."""
        self.adapters.pool.activate(name)

    def adapter_id_for(self, slot: int) -> int:
        """First 8 bytes of SHA-256 over name, digest and generation; 0 for the base model only.

        InvalidRequest for a slot that holds no adapter.
        """
        return self.adapters.pool.identity(slot)

    def acquire_adapter_slot(self, slot: int) -> int:
        """Count a reference on `slot`, or on the active adapter's for -1; the resolved slot, or -1."""
        return self.adapters.pool.acquire(slot)

    def release_adapter_slot(self, resolved: int) -> None:
        """Give back one reference."""
        self.adapters.pool.release(resolved)

    def swap_lora_from_disk(self, directory: Path, name: str, slot: int, *, activate: bool = True) -> None:
        """Load `directory` as `name` into exactly `slot`; PoolFull when it is busy, pinned or active."""
        self.adapters.from_disk(directory, name, activate=activate, slot=slot)

    def promote_lora_from_peer(
        self,
        peer_addr: str,
        adapter_id: str,
        name: str,
        peft: PeftAdapterConfig | None = None,
        *,
        activate: bool = True,
    ) -> tuple[int, str | None]:
        """Fetch, hash, check, load and switch; nothing is fetched when the digest is already here."""
        return self.adapters.from_peer(peer_addr, adapter_id, name, peft, activate=activate)

    def promote_lora_from_disk(
        self, adapter_dir: Path, name: str, *, activate: bool = True, digest: str | None = None
    ) -> tuple[int, str | None]:
        """Copy, hash, check, load and switch."""
        return self.adapters.from_disk(adapter_dir, name, activate=activate, digest=digest)

    def resident_adapters(self) -> list[ResidentAdapter]:
        """The adapters that a name leads to now, sorted by name."""
        return self.adapters.pool.residents()

    def resolve_adapter(self, name: str) -> int:
        """The slot that `name` leads to now; UnknownAdapter when it is not resident."""
        return self.adapters.pool.resolve(name)

    def acquire_adapter(self, name: str) -> tuple[int, ResidentAdapter]:
        """Resolve `name` and count a reference in one step."""
        resident = self.adapters.pool.acquire_name(name)
        return resident.slot, resident

    def unload_adapter(self, name: str) -> bool:
        """Forget `name`; its slot is empty once its references are gone."""
        return self.adapters.pool.unload(name)

    def pin_adapters(self, names: Set[str]) -> None:
        """The whole set of names whose slots are never chosen as victims."""
        self.adapters.pool.pin(names)
