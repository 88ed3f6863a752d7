"""NllbBase: the state that every capability of NllbGpuModel works on. Implements nothing of the interface."""

from nllb_engine.interface import Model, ModelAdapterPool, ModelBeam, ModelLimits
from nllb_engine.kv_cache import CrossKv
from nllb_engine.nllb_gpu_model.core import ModelCore


class NllbBase(Model, ModelBeam, ModelLimits, ModelAdapterPool):
    """The core, the sources of live sequences by slot, and the progress of chunked prefills by slot."""

    def __init__(self, core: ModelCore) -> None:
        """Start without sequences."""
        self.core = core
        self._sources: dict[int, CrossKv] = {}
        self._chunks: dict[int, int] = {}
