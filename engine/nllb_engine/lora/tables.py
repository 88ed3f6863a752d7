"""The mathematics of adapters: per Linear one table of all slots' matrices, applied to each row by its slot.

Knows Linear, slots and checked content. Must not know names, digests, reference counts or files. Memory
is taken once; addresses stay. A slot is filled from any thread while other slots are read: the caller
(`LoraPool`) never fills a slot that a row may use.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from nllb_engine.errors import AdapterRejected
from nllb_engine.layers import Linear, RowAdapters
from nllb_engine.lora.adapter_file import AdapterContent, ModuleDelta, RawTensor

_NO_CHANGE = 1e-6


@dataclass(frozen=True)
class PreparedModule:
    """One Linear's part, on the host: `a` `[r, in]`, `b` `[out, r]` and `bias` `[out]` in the model's dtype.

    `factor` float32 `[out]` is DoRA's magnitude / ‖W + s·B·A‖ per output row.
    """

    path: str
    scaling: float
    a: Tensor
    b: Tensor
    bias: Tensor | None
    factor: Tensor | None

    @property
    def tensors(self) -> list[Tensor]:
        """Those that are there."""
        return [one for one in (self.a, self.b, self.bias, self.factor) if one is not None]


@dataclass(frozen=True)
class PreparedAdapter:
    """An adapter ready to be copied into a slot; `bytes` is what it takes there."""

    rank: int
    modules: tuple[PreparedModule, ...]

    @property
    def bytes(self) -> int:
        """Bytes of all matrices and vectors."""
        return sum(one.numel() * one.element_size() for module in self.modules for one in module.tensors)


@dataclass(frozen=True)
class _SlotFacts:
    rank: int
    scaling: float
    has_bias: bool
    has_factor: bool


class LoraProjection:
    """All slots of one Linear: A `[slots, max_rank, in]`, B `[slots, out, max_rank]`, vectors `[slots, out]`.

    Implements `layers.LoraTable`. A slot without facts does not touch this Linear.
    """

    def __init__(self, linear: Linear, slots: int, max_rank: int) -> None:
        """Take the memory, in the Linear's dtype and on its device; DoRA's factors are float32."""
        out, inner = linear.weight.shape
        weight = linear.weight
        self._base_bias = linear.bias
        self._a = weight.new_zeros(slots, max_rank, inner)
        self._b = weight.new_zeros(slots, out, max_rank)
        self._bias = weight.new_zeros(slots, out)
        self._factor = weight.new_ones(slots, out, dtype=torch.float32)
        self._facts: list[_SlotFacts | None] = [None] * slots

    def apply(self, x: Tensor, out: Tensor, rows: RowAdapters) -> Tensor:
        """y += s·(B·A·x + b), in place in `out`, for the rows of each slot; see `layers.LoraTable`.

        DoRA (arXiv 2402.09353, eq. 5, in PEFT's form): y += (f - 1)·(W·x) + f·s·B·A·x.
        """
        for slot, members in zip(rows.distinct, rows.members, strict=True):
            facts = self._facts[slot]
            if facts is None:
                continue
            if members is None:
                out += self._delta(slot, facts, x, out)
            else:
                out[members] += self._delta(slot, facts, x[members], out[members])
        return out

    def _delta(self, slot: int, facts: _SlotFacts, x: Tensor, out: Tensor) -> Tensor:
        bias = self._bias[slot] if facts.has_bias else None
        inner = functional.linear(x, self._a[slot, : facts.rank])
        delta = functional.linear(inner, self._b[slot, :, : facts.rank], bias) * facts.scaling
        if not facts.has_factor:
            return delta
        factor = self._factor[slot]
        base = out.float() if self._base_bias is None else out.float() - self._base_bias.float()
        return ((factor - 1) * base + factor * delta.float()).to(out.dtype)

    def fill(self, slot: int, module: PreparedModule | None) -> None:
        """Replace the slot's content; None: the slot's adapter does not touch this Linear."""
        self._facts[slot] = None
        for pool in (self._a, self._b, self._bias):
            pool[slot].zero_()
        self._factor[slot].fill_(1)
        if module is None:
            return
        rank = module.a.shape[0]
        self._a[slot, :rank].copy_(module.a, non_blocking=True)
        self._b[slot, :, :rank].copy_(module.b, non_blocking=True)
        if module.bias is not None:
            self._bias[slot].copy_(module.bias, non_blocking=True)
        if module.factor is not None:
            self._factor[slot].copy_(module.factor, non_blocking=True)
        self._facts[slot] = _SlotFacts(
            rank, module.scaling, module.bias is not None, module.factor is not None
        )


class LoraTables:
    """The projections of a whole model, hooked into its Linears."""

    def __init__(self, linears: Iterable[Linear], slots: int, max_rank: int) -> None:
        """Give each Linear its table. Memory: slots · max_rank · Σ(in + out) elements."""
        self.slots, self.max_rank = slots, max_rank
        self._linears = {linear.name: linear for linear in linears}
        self._projections = {
            name: LoraProjection(linear, slots, max_rank) for name, linear in self._linears.items()
        }
        for name, linear in self._linears.items():
            linear.lora = self._projections[name]
        self._device = next(iter(self._linears.values())).weight.device
        self.shapes: dict[str, tuple[int, int]] = {
            name: (linear.weight.shape[0], linear.weight.shape[1]) for name, linear in self._linears.items()
        }

    def close(self) -> None:
        """Give the memory back and unhook the Linears."""
        for linear in self._linears.values():
            linear.lora = None
        self._linears, self._projections = {}, {}

    @torch.inference_mode()
    def prepare(self, content: AdapterContent) -> PreparedAdapter:
        """Convert to the model's dtype and fold DoRA's norms; AdapterRejected when nothing would change."""
        modules = tuple(self._prepared(module) for module in content.modules)
        if not any(map(_changes, modules)):
            raise AdapterRejected(
                "NoEffect",
                "B is zero and every magnitude is the base weight's own, so the "
                "adapter changes nothing; publish the trained weights",
            )
        return PreparedAdapter(content.rank, modules)

    @torch.inference_mode()
    def fill(self, slot: int, adapter: PreparedAdapter) -> None:
        """Copy an adapter into a slot that no row uses; complete on the device when this returns."""
        modules = {module.path: module for module in adapter.modules}
        if self._device.type != "cuda":
            self._copy(slot, modules)
            return
        stream = torch.cuda.Stream(self._device)
        with torch.cuda.stream(stream):
            self._copy(slot, modules)
        stream.synchronize()

    def _copy(self, slot: int, modules: dict[str, PreparedModule]) -> None:
        for path, projection in self._projections.items():
            projection.fill(slot, modules.get(path))

    def _prepared(self, module: ModuleDelta) -> PreparedModule:
        weight = self._linears[module.path].weight

        def host(raw: RawTensor) -> Tensor:
            tensor = to_tensor(raw).to(weight.dtype)
            return tensor.pin_memory() if weight.is_cuda else tensor

        return PreparedModule(
            module.path, module.scaling, host(module.a), host(module.b),
            None if module.bias is None else host(module.bias),
            None if module.magnitude is None else _dora_factor(weight, module, module.magnitude),
        )  # fmt: skip


def to_tensor(raw: RawTensor) -> Tensor:
    """A copy of the checked values, in the file's dtype, on the host."""
    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[raw.dtype]
    return torch.from_numpy(np.array(raw.bits)).view(dtype)


def _dora_factor(weight: Tensor, module: ModuleDelta, magnitude: RawTensor) -> Tensor:
    """magnitude / ‖W + s·B·A‖, the norm over each output row, in float32 on the host."""
    a, b = (to_tensor(raw).to(weight.device, torch.float32) for raw in (module.a, module.b))
    norm: Tensor = torch.linalg.vector_norm(weight.float() + module.scaling * (b @ a), dim=1)
    factor: Tensor = to_tensor(magnitude).float() / norm.cpu().clamp_min(torch.finfo(torch.float32).tiny)
    return factor


def _changes(module: PreparedModule) -> bool:
    if module.factor is not None and bool(((module.factor - 1).abs() > _NO_CHANGE).any()):
        return True
    product = bool(module.a.any()) and bool(module.b.any())
    return product or (module.bias is not None and bool(module.bias.any()))
