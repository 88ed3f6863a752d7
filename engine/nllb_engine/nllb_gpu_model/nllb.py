"""NllbGpuModel: every capability in one class, and how it is built."""

from pathlib import Path

from nllb_engine.backend import GpuBackend
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.interface import WeightStore
from nllb_engine.lora.promotion import AdapterPromoter
from nllb_engine.lora.source import AdapterSource
from nllb_engine.lora.store import AdapterStore
from nllb_engine.nllb_gpu_model.adapters import NllbAdapters
from nllb_engine.nllb_gpu_model.beams import NllbBeams
from nllb_engine.nllb_gpu_model.core import ModelCore
from nllb_engine.nllb_gpu_model.feed import NllbDeviceFeed
from nllb_engine.nllb_gpu_model.lifecycle import NllbLifecycle
from nllb_engine.nllb_gpu_model.no_draft import NoDraft, NoSsmState, NoVerify
from nllb_engine.nllb_gpu_model.reading import NllbLogits, NllbStreams


class NllbGpuModel(
    NllbAdapters,
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
        *,
        max_loras: int = 8,
        max_lora_rank: int = 64,
        adapter_source: AdapterSource | None = None,
        adapter_store: AdapterStore | None = None,
    ) -> "NllbGpuModel":
        """Load the weights of `store` onto `gpu`, computing in the backend's dtype.

        `max_seq_len` sets the decoder's rows per sequence, clamped to 512..=2048. CheckpointError unless
        model.shared.weight is stored as bfloat16, or when a tensor is missing or does not fit `config`.
        `max_loras` slots take adapters of up to `max_lora_rank`; their files live in `adapter_store`, or in a
        temporary folder. The PEFT folder `lora_dir` is loaded at once, under its folder's name, and pinned.
        """
        core = ModelCore(config, store, gpu, lang, max_seq_len, max_batch)
        adapters = AdapterPromoter(
            core.network.linears(),
            slots=max_loras,
            max_rank=max_lora_rank,
            store=adapter_store,
            source=adapter_source,
        )
        model = cls(core, adapters)
        if lora_dir is not None:
            model.promote_lora_from_disk(lora_dir, lora_dir.name, activate=False)
            model.pin_adapters({lora_dir.name})
        return model
