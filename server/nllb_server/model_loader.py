"""Builds the model from the settings. The only module that names the class of the model.

Knows folders, devices and torch's threads. Must not know HTTP. Everything blocks, for as long as a large
checkpoint takes.
"""

import logging
import os
from dataclasses import dataclass
from typing import Literal, cast

import torch

from nllb_engine.backend import open_backend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig
from nllb_engine.convert import bf16_checkpoint
from nllb_engine.lora.store import AdapterStore
from nllb_engine.nllb_gpu_model import NllbGpuModel
from nllb_engine.tokenizer import Tokenizer
from nllb_server.peers import HttpPeerSource
from nllb_server.settings import ServerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to serve. `name` is what replies call it: the last part of its URI."""

    model: NllbGpuModel
    tokenizer: Tokenizer
    name: str
    device: str
    dtype: str


def load_model(settings: ServerSettings, adapter_store: AdapterStore) -> LoadedModel:
    """Open the device, convert the checkpoint where it is not bf16, load it.

    Raises EngineError or SettingsError; the message says what to change.
    """
    if settings.cpu_threads:
        torch.set_num_threads(settings.cpu_threads)
    backend = open_backend(
        cast(Literal["auto", "cuda", "cpu"], settings.device),
        cast(Literal["auto", "float32", "bfloat16"], settings.dtype),
    )
    folder = settings.folder_of(settings.model_uri)
    tokenizer = Tokenizer.from_folder(folder)
    weights = open_checkpoint(bf16_checkpoint(folder, settings.cache_dir))
    model = NllbGpuModel.new(
        ModelConfig.from_folder(folder),
        weights,
        backend,
        tokenizer.lang(settings.default_source, settings.default_target),
        settings.max_seq_len,
        settings.max_batch,
        max_loras=settings.adapter_slots,
        max_lora_rank=settings.adapter_max_rank,
        adapter_source=HttpPeerSource(settings.max_adapter_bytes),
        adapter_store=adapter_store,
    )
    device = "cpu" if settings.device == "cpu" else "cuda"
    dtype = str(backend.dtype).removeprefix("torch.")
    log.info("model %s on %s in %s, %d CPUs", settings.model_uri, device, dtype, os.cpu_count() or 0)
    return LoadedModel(model, tokenizer, folder.name, device, dtype)
