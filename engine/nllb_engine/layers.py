"""Building blocks of the network, in plain torch: Linear with a per-row adapter hook, LayerNorm, positions.

Knows tensors and the hook's two types. Must not know sequences, caches or where an adapter comes from: the
LoRA package implements `LoraTable` and hands one to each `Linear`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class RowAdapters:
    """Which adapter each row of a forward uses; at least one row uses one.

    `slots` is int64 `[rows]` on the model's device, -1 for the base model. `distinct` are the slots >= 0 that
    occur, ascending, known to the host so that nobody waits for the device to learn them. `members[i]` holds
    the rows of `distinct[i]`, int64 on the device, or is None when every row is of that slot.
    """

    slots: Tensor
    distinct: tuple[int, ...]
    members: tuple[Tensor | None, ...]

    @classmethod
    def of(cls, slots: Sequence[int], device: torch.device) -> "RowAdapters | None":
        """Rows in order with their resolved slots (-1: base); None when all rows are the base model's."""
        groups: dict[int, list[int]] = {}
        for row, slot in enumerate(slots):
            if slot >= 0:
                groups.setdefault(slot, []).append(row)
        if not groups:
            return None
        distinct = tuple(sorted(groups))
        members = tuple(
            None if len(groups[slot]) == len(slots) else torch.tensor(groups[slot], device=device)
            for slot in distinct
        )
        return cls(torch.tensor(slots, dtype=torch.int64, device=device), distinct, members)


class LoraTable(Protocol):
    """All adapters' matrices for one Linear, one entry per pool slot."""

    def apply(self, x: Tensor, out: Tensor, rows: RowAdapters) -> Tensor:
        """Add each row's adapter to the projection.

        `x` is `[rows, ..., in]`, the Linear's input; `out` is `[rows, ..., out]`, its result with the bias
        in; both in the compute dtype. Returns `[rows, ..., out]`; it may write into `out` and return it. Rows
        whose slot is -1, or whose adapter does not touch this Linear, must come back bit for bit the same.
        """
        ...


class Linear:
    """y = x·Wᵀ (+ the row's adapter) + b, with `weight` `[out, in]` and `bias` `[out]` or None.

    `name` is the Hugging Face module path, for example `model.decoder.layers.3.encoder_attn.q_proj`.
    `lora` is None until the LoRA package sets a table.
    """

    def __init__(self, name: str, weight: Tensor, bias: Tensor | None) -> None:
        """Take over the tensors; nothing is copied."""
        self.name = name
        self.weight = weight
        self.bias = bias
        self.lora: LoraTable | None = None

    def forward(self, x: Tensor, rows: RowAdapters | None) -> Tensor:
        """`x` `[rows, ..., in]` → `[rows, ..., out]`. `rows` None: every row is the base model's."""
        out = functional.linear(x, self.weight, self.bias)
        return out if rows is None or self.lora is None else self.lora.apply(x, out, rows)


class LayerNorm:
    """Layer normalisation over the last dimension, eps 1e-5 (torch's default, as in training)."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """`weight` and `bias` are `[d_model]`."""
        self.weight = weight
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        """`[..., d_model]` → the same."""
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def sinusoidal_positions(rows: int, d_model: int, padding_idx: int) -> Tensor:
    """float32 `[rows, d_model]`: sines in the first half, cosines in the second; the padding row is zero.

    Frequency j is exp(-j · ln(10000) / (d_model/2 - 1)). The k-th token uses row k + padding_idx + 1.
    Formula of M2M100SinusoidalPositionalEmbedding (tensor2tensor), in the same order of operations.
    """
    half = d_model // 2
    step = math.log(10000) / (half - 1)
    frequencies = torch.exp(torch.arange(half, dtype=torch.int64).float() * -step)
    angles = torch.arange(rows, dtype=torch.int64).float().unsqueeze(1) * frequencies.unsqueeze(0)
    table = torch.cat([torch.sin(angles), torch.cos(angles)], dim=1)
    table[padding_idx] = 0.0
    return table
