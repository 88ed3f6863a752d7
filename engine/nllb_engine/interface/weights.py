"""WeightStore: named tensors of a checkpoint, read one at a time. Must not know where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class WeightStore(Protocol):
    """Tensors by their Hugging Face names. Reading one must not load the others."""

    def names(self) -> Iterable[str]:
        """All names the store holds."""
        ...

    def dtype(self, name: str) -> torch.dtype:
        """The stored dtype; CheckpointError when the name is missing."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The stored shape; CheckpointError when the name is missing."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor on the CPU, in its stored dtype; CheckpointError when missing or unreadable."""
        ...
