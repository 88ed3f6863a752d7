"""The gate: an adapter folder is read and checked to the last byte before torch sees any of it.

Knows PEFT's two files and the model's module shapes. Must not know torch, slots, digests or where a
folder came from. What passes fits the model exactly, is finite, and has an effect; what does not is
refused with one reason.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nllb_engine.errors import AdapterRejected
from nllb_engine.interface.values import PeftAdapterConfig
from nllb_engine.lora.digest import open_plain
from nllb_engine.lora.peft_config import read_peft_config
from nllb_engine.lora.targets import module_rank, module_scaling, targeted_modules
from nllb_engine.lora.weights_header import ITEM_BYTES, MAX_HEADER_BYTES, TensorEntry, read_header, shown

WEIGHTS_NAME = "adapter_model.safetensors"
PREFIX = "base_model.model."
MAX_ABS = 65504.0
"""Largest magnitude of a value, float16's largest finite number: anything above is damage."""
_PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth", "adapter_model.pkl")
_A, _B, _BIAS, _MAGNITUDE = ".lora_A.weight", ".lora_B.weight", ".lora_B.bias", ".lora_magnitude_vector"
_EMBEDDINGS = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
_BITS: dict[str, "np.dtype[Any]"] = {
    "F32": np.dtype("<u4"), "F16": np.dtype("<u2"), "BF16": np.dtype("<u2"),
}  # fmt: skip
_INFINITY = {"F32": 0x7F800000, "F16": 0x7C00, "BF16": 0x7F80}
_TOO_LARGE = {"F32": 0x477FE001, "F16": 0x7C00, "BF16": 0x4780}  # the first magnitude above MAX_ABS

ModuleShapes: TypeAlias = Mapping[str, tuple[int, int]]
"""Module path → (out, in) of every Linear that may be adapted."""


@dataclass(frozen=True)
class RawTensor:
    """Checked bytes: bit patterns (uint32 for F32, uint16 for F16 and BF16) of `shape`."""

    dtype: str
    bits: NDArray[Any]
    nonzero: bool


@dataclass(frozen=True)
class ModuleDelta:
    """What an adapter adds to one Linear: `a` `[r, in]`, `b` `[out, r]`; `bias` and `magnitude` `[out]`."""

    path: str
    scaling: float
    a: RawTensor
    b: RawTensor
    bias: RawTensor | None
    magnitude: RawTensor | None

    @property
    def rank(self) -> int:
        """Inner width of B·A."""
        return int(self.a.bits.shape[0])


@dataclass(frozen=True)
class AdapterContent:
    """A checked adapter; `modules` in the model's order."""

    config: PeftAdapterConfig
    modules: tuple[ModuleDelta, ...]

    @property
    def rank(self) -> int:
        """The largest rank of a module."""
        return max(module.rank for module in self.modules)


def read_adapter(folder: Path, shapes: ModuleShapes, max_rank: int) -> AdapterContent:
    """Read and check a PEFT folder; AdapterRejected says which file, field or tensor and which limit.

    Memory: the weights once, at most what the adapted modules need in float32, plus a header of 1 MiB.
    """
    config = read_peft_config(folder)
    ranks = _ranks(config, shapes, max_rank)
    expected = {
        f"{path}{suffix}": shape
        for path, rank in ranks.items()
        for suffix, shape in _tensors_of(config, shapes[path], rank).items()
    }
    if not (folder / WEIGHTS_NAME).exists():
        raise _missing_weights(folder)
    with open_plain(folder / WEIGHTS_NAME) as file:
        _check_size(file, expected)
        entries, _ = read_header(file, 3 * len(shapes))
        matched = _match(entries, expected)
        raw = {name: _read(file, entry) for name, entry in matched.items()}
    modules = tuple(
        ModuleDelta(path, module_scaling(config, path), raw[f"{path}{_A}"], raw[f"{path}{_B}"],
                    raw.get(f"{path}{_BIAS}"), raw.get(f"{path}{_MAGNITUDE}"))
        for path in ranks
    )  # fmt: skip
    if not any(_has_effect(module) for module in modules):
        raise AdapterRejected(
            "NoEffect",
            "B is zero in every module, so the adapter changes nothing; publish the trained weights",
        )
    return AdapterContent(config, modules)


def _ranks(config: PeftAdapterConfig, shapes: ModuleShapes, max_rank: int) -> dict[str, int]:
    """Rank of each adapted module, in the model's order."""
    if config.target_modules != "all-linear" and (embeddings := targeted_modules(config, _EMBEDDINGS)):
        raise AdapterRejected(
            "UnsupportedModule",
            f"target_modules names {embeddings[0]}; embeddings and the head "
            "are not adapted; train on the projections and fc1, fc2 only",
        )
    paths = targeted_modules(config, shapes)
    if not paths:
        raise AdapterRejected(
            "NoModule",
            f"target_modules {str(config.target_modules)[:200]} names no module of this "
            "model; NLLB has q_proj, k_proj, v_proj, out_proj, fc1 and fc2",
        )
    ranks = {path: module_rank(config, path) for path in paths}
    for path, rank in ranks.items():
        if rank > max_rank:
            raise AdapterRejected(
                "RankExceedsPool",
                f"{path} has rank {rank}; this fleet's slots take at most "
                f"{max_rank}: raise the fleet's maximum rank or train with a smaller one",
            )
    return ranks


def _tensors_of(config: PeftAdapterConfig, shape: tuple[int, int], rank: int) -> dict[str, tuple[int, ...]]:
    out, inner = shape
    tensors: dict[str, tuple[int, ...]] = {_A: (rank, inner), _B: (out, rank)}
    if config.lora_bias:
        tensors[_BIAS] = (out,)
    if config.use_dora:
        tensors[_MAGNITUDE] = (out,)
    return tensors


def _missing_weights(folder: Path) -> AdapterRejected:
    pickle = next((name for name in _PICKLES if (folder / name).exists()), None)
    if pickle is not None:
        return AdapterRejected(
            "PickleRefused",
            f"{pickle} is a pickle, which can run code; save the adapter with safe_serialization=True",
        )
    return AdapterRejected(
        "WeightsMissing", f"there is no {WEIGHTS_NAME}; give a folder that PEFT's save_pretrained wrote"
    )


def _check_size(file: BinaryIO, expected: Mapping[str, tuple[int, ...]]) -> None:
    items = sum(int(np.prod(shape)) for shape in expected.values())
    limit = 8 + MAX_HEADER_BYTES + items * max(ITEM_BYTES.values())
    size = os.fstat(file.fileno()).st_size
    if size > limit:
        raise AdapterRejected(
            "WeightsTooLarge",
            f"{WEIGHTS_NAME} has {size} bytes; the modules that {len(expected)} "
            f"tensors adapt take at most {limit}",
        )


def _match(entries: list[TensorEntry], expected: Mapping[str, tuple[int, ...]]) -> dict[str, TensorEntry]:
    """The entries, in the order of their bytes, by name without PEFT's prefix; exactly the expected."""
    found: dict[str, TensorEntry] = {}
    for entry in entries:
        name = entry.name.removeprefix(PREFIX)
        if name not in expected:
            raise AdapterRejected(
                "UnmatchedTensor",
                f"{shown(entry.name)} belongs to no module that adapter_config.json adapts in this model",
            )
        if name in found:
            raise AdapterRejected(
                "DuplicateTensor", f"{shown(name)} is there twice, with and without {PREFIX}"
            )
        if entry.shape != expected[name]:
            raise AdapterRejected(
                "ShapeMismatch",
                f"{shown(name)} has shape {list(entry.shape)}; this model and "
                f"adapter_config.json need {list(expected[name])}",
            )
        found[name] = entry
    missing = next((name for name in expected if name not in found), None)
    if missing is not None:
        raise _incomplete(missing, found)
    return found


def _incomplete(missing: str, found: Mapping[str, TensorEntry]) -> AdapterRejected:
    twin = missing.replace(_A, _B) if missing.endswith(_A) else missing.replace(_B, _A)
    if twin != missing and twin in found:
        return AdapterRejected("UnpairedTensor", f"{shown(twin)} is there, but {shown(missing)} is not")
    return AdapterRejected(
        "MissingTensor", f"adapter_config.json adapts a module whose {shown(missing)} is not in the weights"
    )


def _read(file: BinaryIO, entry: TensorEntry) -> RawTensor:
    """The next tensor's bits, checked to be finite and of sane size."""
    data = file.read(entry.end - entry.begin)
    if len(data) != entry.end - entry.begin:
        raise AdapterRejected("Truncated", f"the file ended inside {shown(entry.name)}; copy it again")
    bits = np.frombuffer(data, _BITS[entry.dtype]).reshape(entry.shape)
    sign = np.array(1 << (8 * bits.itemsize - 1), bits.dtype)
    largest = int((bits & ~sign).max())
    if largest >= _INFINITY[entry.dtype]:
        raise AdapterRejected(
            "NotFinite", f"{shown(entry.name)} holds NaN or infinity; the training diverged"
        )
    if largest >= _TOO_LARGE[entry.dtype]:
        raise AdapterRejected("ValueTooLarge", f"{shown(entry.name)} holds a value beyond ±{MAX_ABS:.0f}")
    return RawTensor(entry.dtype, bits, largest > 0)


def _has_effect(module: ModuleDelta) -> bool:
    product = module.a.nonzero and module.b.nonzero
    return product or module.magnitude is not None or (module.bias is not None and module.bias.nonzero)
