"""NllbBase: the state that every capability of NllbGpuModel works on. Implements nothing of the interface."""

from nllb_engine.errors import InvalidRequest
from nllb_engine.interface import Model, ModelAdapterPool, ModelBeam, ModelLimits
from nllb_engine.kv_cache import CrossKv
from nllb_engine.lora.promotion import AdapterPromoter
from nllb_engine.nllb_gpu_model.core import ModelCore


class NllbBase(Model, ModelBeam, ModelLimits, ModelAdapterPool):
    """The core, its adapters, the sources of live sequences and the progress of chunked prefills, by slot."""

    def __init__(self, core: ModelCore, adapters: AdapterPromoter) -> None:
        """Start without sequences."""
        self.core = core
        self.adapters = adapters
        self._sources: dict[int, CrossKv] = {}
        self._chunks: dict[int, int] = {}

    def _acquire_adapter(self, slot: int) -> int:
        """A reference for one sequence; InvalidRequest when `slot` names an adapter that is not there.

        The base model never answers in an adapter's place.
        """
        resolved = self.acquire_adapter_slot(slot)
        if slot >= 0 and resolved < 0:
            raise InvalidRequest(f"adapter slot {slot} holds no adapter; acquire it by its name first")
        return resolved
