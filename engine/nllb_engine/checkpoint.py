"""Reads the tensors of a Hugging Face folder, one at a time.

Knows file formats: safetensors and restricted pickles, single and sharded. Must not know what a tensor is
for, apart from the `model.` prefix that base-model saves leave out.
"""

import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from nllb_engine.config import read_json_object
from nllb_engine.errors import CheckpointError
from nllb_engine.interface import WeightStore

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
    "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def open_checkpoint(folder: Path) -> WeightStore:
    """The weights of a folder; safetensors are preferred. CheckpointError when there are none."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; give the folder of a Hugging Face checkpoint")
    if (folder / "model.safetensors").exists():
        return SafetensorsStore([folder / "model.safetensors"])
    if (folder / "model.safetensors.index.json").exists():
        return SafetensorsStore(_shards(folder / "model.safetensors.index.json"))
    if (folder / "pytorch_model.bin").exists():
        return PickleStore([folder / "pytorch_model.bin"])
    if (folder / "pytorch_model.bin.index.json").exists():
        return PickleStore(_shards(folder / "pytorch_model.bin.index.json"))
    raise CheckpointError(f"{folder} holds no weights; model.safetensors or pytorch_model.bin is needed, "
                          "single or sharded with its index")


class SafetensorsStore:
    """Tensors of one or more safetensors files, read by memory map."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Open the files and read their headers; CheckpointError when one is missing or damaged."""
        self._files: dict[str, tuple[Any, str]] = {}
        for path in paths:
            try:
                handle = safetensors.safe_open(str(path), framework="pt")
                stored = list(handle.keys())
            except (OSError, safetensors.SafetensorError) as error:
                raise CheckpointError(f"{path} is not a readable safetensors file: {error}") from error
            self._files.update({canonical_name(name): (handle, name) for name in stored})

    def names(self) -> Iterable[str]:
        """All canonical names."""
        return self._files.keys()

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype, from the header."""
        code = self._slice(name).get_dtype()
        if code not in _DTYPES:
            raise CheckpointError(f"tensor {name} has dtype {code}, which this engine cannot read")
        return _DTYPES[code]

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape, from the header."""
        return tuple(self._slice(name).get_shape())

    def tensor(self, name: str) -> Tensor:
        """The tensor, backed by the file's memory map."""
        handle, stored = self._entry(name)
        try:
            tensor: Tensor = handle.get_tensor(stored)
        except (OSError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"tensor {name} cannot be read: {error}") from error
        return tensor

    def _slice(self, name: str) -> Any:
        handle, stored = self._entry(name)
        return handle.get_slice(stored)

    def _entry(self, name: str) -> tuple[Any, str]:
        if name not in self._files:
            raise _missing(name)
        return self._files[name]


class PickleStore:
    """Tensors of pytorch_model.bin files, read by torch's restricted loader, which runs no code."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Map the files; CheckpointError when one is missing, damaged, or holds more than tensors."""
        self._tensors: dict[str, Tensor] = {}
        for path in paths:
            loaded = self._load(path)
            if not isinstance(loaded, dict):
                raise CheckpointError(f"{path} holds {type(loaded).__name__}, not a dictionary of tensors")
            self._tensors.update(
                {canonical_name(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
            )

    @staticmethod
    def _load(path: Path) -> object:
        try:
            # Only the zip format of torch >= 1.6 can be mapped instead of read whole.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing although the index names it") from None
        except Exception as error:  # torch raises UnpicklingError, RuntimeError, EOFError, KeyError ...
            raise CheckpointError(f"{path} is not a readable file of plain tensors: {error}") from error

    def names(self) -> Iterable[str]:
        """All canonical names."""
        return self._tensors.keys()

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype."""
        return self.tensor(name).dtype

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape."""
        return tuple(self.tensor(name).shape)

    def tensor(self, name: str) -> Tensor:
        """The tensor, backed by the file's memory map."""
        if name not in self._tensors:
            raise _missing(name)
        return self._tensors[name]


class WeightReader:
    """Brings single tensors to a device and dtype, so that no more than one is held twice."""

    def __init__(self, store: WeightStore, device: torch.device, dtype: torch.dtype) -> None:
        """Read from `store` into `device` memory as `dtype`."""
        self.store = store
        self._names = frozenset(store.names())
        self._device = device
        self._dtype = dtype

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds `name`."""
        return name in self._names

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """A fresh copy of tensor `name`; CheckpointError when missing, of another shape or not floating."""
        found = self.store.shape(name)
        if found != shape:
            raise CheckpointError(f"tensor {name} has shape {list(found)}, "
                                  f"but config.json asks for {list(shape)}")
        stored = self.store.dtype(name)
        if not stored.is_floating_point:
            raise CheckpointError(f"tensor {name} has dtype {stored}; a floating dtype is needed")
        return torch.empty(shape, device=self._device, dtype=self._dtype).copy_(self.store.tensor(name))


def canonical_name(name: str) -> str:
    """The name as the whole model saves it: base-model saves leave the prefix `model.` out."""
    return f"model.{name}" if name.split(".", 1)[0] in ("encoder", "decoder", "shared") else name


def _shards(index: Path) -> list[Path]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map; fetch the index file again")
    names = sorted({str(name) for name in weight_map.values()})
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index} names the shard {name!r}, which is not a plain file name")
        if not (index.parent / name).exists():
            raise CheckpointError(f"{index.parent / name} is missing although {index.name} names it")
    return [index.parent / name for name in names]


def _missing(name: str) -> CheckpointError:
    return CheckpointError(f"tensor {name} is missing from the checkpoint")
