"""LoRA adapters: the active one, references to slots, disk swap and promotion. Knows no file format."""

from pathlib import Path

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import PeftAdapterConfig


class ModelAdapters:
    """Adapters in fixed slots. A slot that a running or queued sequence references is never written."""

    def set_active_lora(self, name: str) -> None:
        """Make the resident adapter `name` the one that slot selector -1 means; from the next prefill on.

        Errors: UnknownAdapter. Seed's default: an error.
        """
        raise UnsupportedByModel("set_active_lora")

    def adapter_id_for(self, slot: int) -> int:
        """64-bit identity of what `slot` computes, for cache keys; `slot` -1 is the active adapter.

        0 is the base model and nothing else; new content or a new generation gives a new identity.
        Seed's default: 0.
        """
        return 0

    def acquire_adapter_slot(self, slot: int) -> int:
        """Take a reference on `slot` (-1: the active adapter) for one sequence.

        Returns the resolved slot, which the caller gives to `release_adapter_slot`, or -1 when no reference
        was taken and the base model answers. Seed's default: -1.
        """
        return -1

    def release_adapter_slot(self, resolved: int) -> None:
        """Give back a reference by the slot that `acquire_adapter_slot` returned; -1 does nothing.

        Seed's default: nothing.
        """
        return None

    def swap_lora_from_disk(self, directory: Path, name: str, slot: int, *, activate: bool = True) -> None:
        """Load the PEFT folder `directory` as `name` into `slot`, which must not be referenced.

        Errors: AdapterRejected, PoolFull when the slot is busy. A failure changes nothing. Seed's default: an
        error.
        """
        raise UnsupportedByModel("swap_lora_from_disk")

    def promote_lora_from_peer(
        self,
        peer_addr: str,
        adapter_id: str,
        name: str,
        peft: PeftAdapterConfig | None = None,
        *,
        activate: bool = True,
    ) -> tuple[int, str | None]:
        """Fetch adapter `adapter_id` (a folder digest, 64 hex digits) from `peer_addr` and load it as `name`.

        Returns the slot and the name it evicted. The files are hashed before they are read; `peft`, when
        given, must agree with them. The switch of `name` to the slot is one atomic step, and a failure
        changes nothing. With `activate` (the seed's behaviour) the adapter also becomes the active one.
        Errors: PeerUnavailable, DigestMismatch, AdapterRejected, PoolFull. Seed's default: an error.
        """
        raise UnsupportedByModel("promote_lora_from_peer")

    def promote_lora_from_disk(
        self, adapter_dir: Path, name: str, *, activate: bool = True, digest: str | None = None
    ) -> tuple[int, str | None]:
        """Load the PEFT folder `adapter_dir` as `name` into a free slot; returns slot and evicted name.

        As `promote_lora_from_peer`, without the transfer; a `digest`, when given, must be the folder's.
        Seed's default: an error.
        """
        raise UnsupportedByModel("promote_lora_from_disk")
