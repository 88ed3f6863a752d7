"""NllbGpuModel: every capability in one class, and how it is built."""

from pathlib import Path

from nllb_engine.backend import GpuBackend
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.interface import WeightStore
from nllb_engine.nllb_gpu_model.beams import NllbBeams
from nllb_engine.nllb_gpu_model.core import ModelCore
from nllb_engine.nllb_gpu_model.feed import NllbDeviceFeed
from nllb_engine.nllb_gpu_model.lifecycle import NllbLifecycle
from nllb_engine.nllb_gpu_model.no_adapters import NoAdapters
from nllb_engine.nllb_gpu_model.no_draft import NoDraft, NoSsmState, NoVerify
from nllb_engine.nllb_gpu_model.reading import NllbLogits, NllbStreams


class NllbGpuModel(
    NoAdapters,
    NllbBeams,
    NllbDeviceFeed,
    NllbLifecycle,
    NllbLogits,
    NllbStreams,
    NoDraft,
    NoVerify,
    NoSsmState,
):
    """The served NLLB encoder-decoder. All calls but the adapters' come from one worker thread."""

    @classmethod
    def new(
        cls,
        config: ModelConfig,
        store: WeightStore,
        gpu: GpuBackend,
        lang: NllbLang,
        max_seq_len: int,
        max_batch: int,
        lora_dir: Path | None = None,
    ) -> "NllbGpuModel":
        """Load the weights of `store` onto `gpu`, computing in the backend's dtype.

        `max_seq_len` sets the decoder's rows per sequence, clamped to 512..=2048. CheckpointError unless
        model.shared.weight is stored as bfloat16, or when a tensor is missing or does not fit `config`.
        """
        return cls(ModelCore(config, store, gpu, lang, max_seq_len, max_batch))
