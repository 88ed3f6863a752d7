"""Makes PEFT adapters for tests: random ones by peft itself, and files written byte by byte."""

import contextlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from tiny_configs import TinyConfig
from torch import Tensor
from transformers import M2M100ForConditionalGeneration

from nllb_engine.backend import CpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.interface import PrefillSlice
from nllb_engine.nllb_gpu_model import NllbGpuModel

EOS = 2
KINDS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2")
SMALL = TinyConfig(
    seed=11, encoder_layers=2, decoder_layers=2, d_model=32, heads=(2, 4), ffn=(48, 40), vocab=97, tied=True,
    layout="single",
)  # fmt: skip


def small_model(folder: Path, **options: Any) -> NllbGpuModel:
    """Our model of the checkpoint of `SMALL` in `folder`, in float32; `options` go to the constructor."""
    lang = NllbLang(language_ids=frozenset(SMALL.languages))
    config = ModelConfig.from_folder(folder)
    return NllbGpuModel.new(config, open_checkpoint(folder), CpuBackend(), lang, 512, 16, **options)


def random_adapter(base: M2M100ForConditionalGeneration, folder: Path, seed: int, **config: Any) -> Path:
    """Save a random adapter of `base` with peft; every value is far from where training starts."""
    torch.manual_seed(seed)
    with _without_pefts_noise():
        wrapped = get_peft_model(base, LoraConfig(init_lora_weights=False, **config))
    with torch.no_grad():
        for name, weight in wrapped.named_parameters():
            if "lora_magnitude_vector" in name:
                weight *= 0.5 + torch.rand_like(weight)
    try:
        with _without_pefts_noise():
            wrapped.save_pretrained(folder)
    finally:
        wrapped.unload()
    return folder


@contextlib.contextmanager
def peft_on(base: M2M100ForConditionalGeneration, folder: Path) -> Iterator[M2M100ForConditionalGeneration]:
    """`base` with the adapter of `folder` on it, by peft; as before afterwards."""
    with _without_pefts_noise():
        adapted = PeftModel.from_pretrained(base, str(folder)).eval()
    try:
        yield adapted.get_base_model()
    finally:
        adapted.unload()


@contextlib.contextmanager
def _without_pefts_noise() -> Iterator[None]:
    """A name that transformers deprecates, and a check that takes every `lora_B.bias` for a broken matrix."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*lora_B\.bias.*", UserWarning)
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        yield


def their_logits(
    model: torch.nn.Module, source: Sequence[int], src: int, tgt: int, forced: Sequence[int]
) -> Tensor:
    """float32 `[1 + len(forced), vocab]`: after the prompt and after each forced token."""
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor([[src, *source, EOS]]),
            attention_mask=torch.ones(1, len(source) + 2, dtype=torch.int64),
            decoder_input_ids=torch.tensor([[EOS, tgt, *forced]]),
        )
    logits: Tensor = out.logits[0, 1:]
    return logits


def our_logits(
    model: NllbGpuModel,
    sources: Sequence[Sequence[int]],
    src: int,
    tgt: int,
    forced: Sequence[Sequence[int]],
    slots: Sequence[int],
) -> list[Tensor]:
    """As `their_logits` for each row of one batch, row i with the adapter of slots[i]."""
    seqs = []
    for slot in slots:
        seq = model.alloc_sequence()
        seq.src_lang_id, seq.tgt_lang_id, seq.adapter_slot = src, tgt, slot
        seqs.append(seq)
    pointers = model.prefill_batch_chunk(
        [PrefillSlice.whole(list(source), seq) for source, seq in zip(sources, seqs, strict=True)]
    )
    steps = [model.core.rows_at(pointers[0], len(seqs)).clone()]
    for tokens in zip(*forced, strict=True):
        pointer = model.decode_batch(list(tokens), seqs)
        steps.append(model.core.rows_at(pointer, len(seqs)).clone())
    for seq in seqs:
        model.free_sequence(seq)
    return list(torch.stack(steps, dim=1))


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """The saved tensors, by name."""
    loaded: dict[str, Tensor] = load_file(folder / "adapter_model.safetensors")
    return loaded


def write_adapter(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write a PEFT folder from its parts."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **config}))
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors"
    )
    return folder


def small_adapter(folder: Path, seed: int, layers: int = 2, d_model: int = 32, rank: int = 4) -> Path:
    """A random adapter on q_proj and v_proj of `SMALL`, written without a base model, in milliseconds."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for stack, blocks in (("encoder", ("self_attn",)), ("decoder", ("self_attn", "encoder_attn"))):
        for layer in range(layers):
            for block in blocks:
                for kind in ("q_proj", "v_proj"):
                    key = f"base_model.model.model.{stack}.layers.{layer}.{block}.{kind}"
                    tensors[f"{key}.lora_A.weight"] = torch.randn(rank, d_model, generator=draw)
                    tensors[f"{key}.lora_B.weight"] = torch.randn(d_model, rank, generator=draw) * 0.2
    return write_adapter(
        folder, {"r": rank, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}, tensors
    )
