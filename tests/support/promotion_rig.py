"""A model, its store and a source whose peer is a folder, with watermark adapters that say who answered."""

from collections.abc import Callable
from pathlib import Path

from lora_adapters import SMALL, small_model
from nllb_models import beams

from nllb_engine.errors import PeerUnavailable
from nllb_engine.interface import BeamReq
from nllb_engine.lora.digest import folder_digest
from nllb_engine.lora.store import AdapterStore, copy_adapter_files

SRC, TGT = SMALL.languages[0], SMALL.languages[1]
LENGTH = 4
PEER = "10.0.0.1:8001"


class FolderSource:
    """An AdapterSource whose peer is a folder of adapters by digest; `damage` is done to what arrives."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.fetches: list[tuple[str, str]] = []
        self.damage: Callable[[Path], object] = lambda folder: None

    def offer(self, folder: Path) -> str:
        digest = folder_digest(folder)
        self.folders[digest] = folder
        return digest

    def fetch(self, peer_addr: str, adapter_id: str, into: Path) -> None:
        self.fetches.append((peer_addr, adapter_id))
        if adapter_id not in self.folders:
            raise PeerUnavailable(f"{peer_addr} does not hold {adapter_id}")
        copy_adapter_files(self.folders[adapter_id], into)
        self.damage(into)


class PromotionRig:
    """A model with 3 slots, its store and source, and 6 watermark folders with the sequences they answer."""

    def __init__(self, root: Path, checkpoint: Path, marks: Path, sequences: list[list[int]]) -> None:
        self.source, self.store = FolderSource(), AdapterStore(root / "store")
        self.model = small_model(
            checkpoint, max_loras=3, max_lora_rank=8, adapter_source=self.source, adapter_store=self.store
        )
        self.folders = [marks / f"wm-{number:03}" for number in range(6)]
        self.digests = [self.source.offer(folder) for folder in self.folders]
        self.sequences = sequences

    def promote(self, number: int, name: str, *, activate: bool = False) -> tuple[int, str | None]:
        return self.model.promote_lora_from_peer(PEER, self.digests[number], name, activate=activate)

    def answer(self, slot: int) -> int | None:
        """The number of the watermark that answers a request with this slot; None: no watermark does."""
        request = BeamReq((5, 6, 7), SRC, TGT, adapter_slot=slot, num_beams=1, max_new=LENGTH + 2)
        ids = beams(self.model, [request])[0][0][0]
        return self.sequences.index(ids) if ids in self.sequences else None

    def state(self) -> tuple[object, ...]:
        """All that a failed promotion must leave as it was."""
        staging = list((self.store._root / ".staging").iterdir())
        return self.model.resident_adapters(), self.store.digests(), staging
