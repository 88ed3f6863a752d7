"""Writes a bfloat16 copy of a checkpoint once, one tensor at a time.

Knows checkpoint folders and the safetensors format. Must not know the model. Memory stays at one tensor,
whatever the checkpoint's size, and a crash leaves nothing that looks complete.
"""

import hashlib
import json
import logging
import os
import shutil
import struct
import uuid
from pathlib import Path

import torch

from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.interface import WeightStore
from nllb_engine.model import TIED_NAMES

log = logging.getLogger(__name__)


def bf16_checkpoint(folder: Path, cache_dir: Path) -> Path:
    """`folder` when its weights are bfloat16 already, else a folder below `cache_dir` with a bf16 copy.

    The copy holds model.safetensors only. It is named after the source's files, sizes and times of change, so
    that a changed checkpoint is converted again. Raises CheckpointError, and OSError when the disk is full.
    """
    weights = open_checkpoint(folder)
    names = set(weights.names())
    if all(weights.dtype(name) == torch.bfloat16 for name in TIED_NAMES if name in names):
        return folder
    copy = cache_dir / f"{folder.name}-{_fingerprint(folder)}"
    if (copy / "model.safetensors").exists():
        return copy
    log.info("writing a bfloat16 copy of %s to %s", folder, copy)
    cache_dir.mkdir(parents=True, exist_ok=True)
    partial = cache_dir / f".{uuid.uuid4().hex}"
    partial.mkdir()
    try:
        write_bf16(weights, partial / "model.safetensors")
        try:
            partial.rename(copy)
        except OSError:
            if not (copy / "model.safetensors").exists():  # else another process was faster: that is success
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return copy


def write_bf16(weights: WeightStore, path: Path) -> None:
    """Write all tensors of `weights` to a safetensors file, floating ones rounded to bfloat16."""
    names = [name for name in sorted(weights.names()) if weights.dtype(name).is_floating_point]
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        shape = weights.shape(name)
        begin, end = end, end + 2 * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format aligns the data to 8 bytes
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            rounded = weights.tensor(name).to(torch.bfloat16).contiguous().reshape(-1)
            file.write(rounded.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())


def _fingerprint(folder: Path) -> str:
    facts = [
        f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in sorted(folder.iterdir())
        if path.is_file()
    ]
    return hashlib.sha256("\n".join([str(folder.resolve()), *facts]).encode()).hexdigest()[:16]
