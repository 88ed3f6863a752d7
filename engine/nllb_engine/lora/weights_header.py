"""The header of a safetensors file, parsed as if its writer meant harm.

Knows the format's layout and the gate's limits. Must not know adapters, modules or torch.
Format: 8 bytes little-endian header length, JSON header, data; offsets count from the start of the data.
"""

import os
from dataclasses import dataclass
from typing import BinaryIO

from nllb_engine.errors import AdapterRejected
from nllb_engine.lora.peft_config import strict_json_object

MAX_HEADER_BYTES = 1 << 20
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_MAX_DIMENSION = 1 << 31
# JSON tokens that one tensor's entry needs, and what is left for the metadata.
_TOKENS_PER_TENSOR = 16
_TOKENS_OF_METADATA = 1024


@dataclass(frozen=True)
class TensorEntry:
    """One tensor: name, dtype (a key of ITEM_BYTES), shape, first and one-past-last byte in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(file: BinaryIO, max_tensors: int) -> tuple[list[TensorEntry], int]:
    """Entries in the order of their bytes, and the length of the data, which they cover exactly.

    Leaves `file` at the start of the data. Raises AdapterRejected; reads at most MAX_HEADER_BYTES.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > size - 8:
        raise AdapterRejected(
            "Truncated", f"the header claims {length} bytes in a file of {size}; copy it again"
        )
    if length > MAX_HEADER_BYTES:
        raise AdapterRejected(
            "HeaderTooLarge", f"the header has {length} bytes; at most {MAX_HEADER_BYTES} are read"
        )
    text = file.read(length)
    tokens = sum(text.count(mark) for mark in (b"{", b"[", b",", b":"))
    if tokens > _TOKENS_PER_TENSOR * max_tensors + _TOKENS_OF_METADATA:
        raise AdapterRejected(
            "TooManyTensors",
            f"the header describes more tensors than the model can take: at most {max_tensors}",
        )
    header = strict_json_object(text, "the weights' header")
    header.pop("__metadata__", None)
    entries = sorted((_entry(name, value) for name, value in header.items()), key=lambda one: one.begin)
    _cover(entries, size - 8 - length)
    return entries, size - 8 - length


def _entry(name: str, value: object) -> TensorEntry:
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise AdapterRejected(
            "BadHeader", f"{shown(name)} has no plain entry of dtype, shape and data_offsets"
        )
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise AdapterRejected(
            "UnsupportedDtype",
            f"{shown(name)} is {str(dtype)[:40]!r}; save it as one of {', '.join(ITEM_BYTES)}",
        )
    if not _whole(shape) or not _whole(offsets) or len(offsets) != 2:
        raise AdapterRejected(
            "BadHeader", f"{shown(name)} has a shape or offsets that are no lists of whole numbers"
        )
    if len(shape) not in (1, 2) or 0 in shape:
        raise AdapterRejected(
            "ShapeMismatch",
            f"{shown(name)} has shape {shape[:8]}; it must have one or two dimensions, none of them 0",
        )
    items = 1
    for dimension in shape:
        items *= dimension
    begin, end = offsets
    if end - begin != items * ITEM_BYTES[dtype]:
        raise AdapterRejected(
            "ByteRanges",
            f"{shown(name)} takes {end - begin} bytes, but {dtype} of shape {shape} "
            f"needs {items * ITEM_BYTES[dtype]}",
        )
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _whole(values: object) -> bool:
    return isinstance(values, list) and all(
        isinstance(one, int) and not isinstance(one, bool) and 0 <= one < _MAX_DIMENSION for one in values
    )


def _cover(entries: list[TensorEntry], data: int) -> None:
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise AdapterRejected(
                "ByteRanges",
                f"{shown(entry.name)} begins at byte {entry.begin} instead of "
                f"{position}: the tensors overlap or leave a hole",
            )
        position = entry.end
    if position != data:
        raise AdapterRejected(
            "ByteRanges",
            f"the tensors end at byte {position} of {data} bytes of data; "
            "the file is cut off or something follows",
        )


def shown(name: str) -> str:
    """A tensor's name, short and printable whatever it holds."""
    return repr(name[:200])
