"""Keys and values that a decoder step reads: of earlier target tokens, and of the source.

Knows slots, rows and layers. Must not know sequences or requests. The unit of allocation is the block; today
one block is one slot, with room for a whole sequence. Callers address rows through `SelfKvStep` only, so that
smaller blocks change nothing but this module.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nllb_engine.errors import CacheFull, InvalidRequest


class SlotPool:
    """Slots 0..total-1. Invariant: a slot is free or has exactly one owner; the lowest free goes first."""

    def __init__(self, total: int) -> None:
        """All slots free."""
        self.total = total
        self._free = list(range(total))
        self._owners: dict[int, object] = {}

    @property
    def free(self) -> int:
        """Slots that can be taken now."""
        return len(self._free)

    def take(self, owner: object) -> int:
        """Give the lowest free slot to `owner`; CacheFull when there is none."""
        if not self._free:
            raise CacheFull(f"all {self.total} sequence slots are taken; free a sequence or raise max_batch")
        slot = heapq.heappop(self._free)
        self._owners[slot] = owner
        return slot

    def owns(self, slot: int, owner: object) -> bool:
        """Whether `slot` belongs to `owner`, by identity."""
        return self._owners.get(slot) is owner

    def give_back(self, slot: int, owner: object) -> bool:
        """Free the slot; False, and nothing happens, when `owner` does not own it any more."""
        if not self.owns(slot, owner):
            return False
        del self._owners[slot]
        heapq.heappush(self._free, slot)
        return True

    def move(self, old: int, new: int, owner: object) -> None:
        """`owner` moves from `old` to `new`, taking it over from whoever held it; `old` becomes free."""
        if not self.owns(old, owner) or not 0 <= new < self.total:
            raise InvalidRequest(f"slot {old} cannot move to {new}: only the owner of a slot moves, "
                                 f"and the pool has slots 0..{self.total - 1}")
        if new == old:
            return
        if new not in self._owners:
            self._free.remove(new)
            heapq.heapify(self._free)
        self._owners[new] = owner
        self.give_back(old, owner)


class SelfKvCache:
    """Keys and values of the decoder's own tokens, `[layers, 2, slots, rows, heads, head_dim]`.

    Invariant: what another sequence left in a slot is cleared before the slot is used again. A mask does not
    hide it for certain: zero times a leftover NaN is NaN, and one sequence's overflow would spoil another's.
    """

    def __init__(
        self,
        layers: int,
        slots: int,
        rows: int,
        heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Allocate everything at once, cleared."""
        self.rows = rows
        self._written = [0] * slots  # rows of each slot that hold something
        self._kv = torch.zeros((layers, 2, slots, rows, heads, head_dim), device=device, dtype=dtype)

    @property
    def block_bytes(self) -> int:
        """Bytes of one slot over all layers, keys and values."""
        return self._kv.numel() * self._kv.element_size() // max(self._kv.shape[2], 1)

    def begin(self, slots: Sequence[int], starts: Sequence[int], count: int) -> "SelfKvStep":
        """Prepare a forward that writes `count` rows from starts[i] on into each slots[i]."""
        if max(starts) + count > self.rows:
            raise CacheFull(f"a sequence has filled its {self.rows} rows; end it, or raise max_seq_len")
        self._clear_beyond(count, [slot for slot, start in zip(slots, starts, strict=True) if start == 0])
        for slot, start in zip(slots, starts, strict=True):
            self._written[slot] = max(self._written[slot], start + count)
        return SelfKvStep(self._kv, slots, starts, count)

    def copy(self, pairs: Sequence[tuple[int, int]], rows: int) -> None:
        """Copy the first `rows` rows of each (source, target) slot; no target may be a source."""
        if not pairs or not rows:
            return
        sources, targets = torch.tensor(pairs, device=self._kv.device).unbind(1)
        self._kv[:, :, targets, :rows] = self._kv[:, :, sources, :rows]
        self._clear_beyond(rows, [target for _, target in pairs])

    def _clear_beyond(self, rows: int, slots: Sequence[int]) -> None:
        """Clear what `slots` hold from row `rows` on; afterwards they hold `rows` rows."""
        stale = [slot for slot in slots if self._written[slot] > rows]
        if stale:
            last = max(self._written[slot] for slot in stale)
            self._kv[:, :, torch.tensor(stale, device=self._kv.device), rows:last] = 0
        for slot in slots:
            self._written[slot] = rows

    def release(self) -> None:
        """Give the memory back; the cache is unusable afterwards."""
        self._kv = torch.empty(0)


class SelfKvStep:
    """One forward's view of the cache: write this step's rows, read all rows up to them.

    `mask` is additive `[n, 1, count, length]`, or None when every row sees all `length` keys.
    """

    def __init__(self, kv: Tensor, slots: Sequence[int], starts: Sequence[int], count: int) -> None:
        """Upload the indices once for all layers."""
        self._kv = kv
        self.length = max(starts) + count
        index = torch.tensor([slots, starts], device=kv.device)
        self._slots = index[0]
        self.positions = index[1].unsqueeze(1) + torch.arange(count, device=kv.device)  # [n, count]
        first = slots[0]
        contiguous = list(slots) == list(range(first, first + len(slots)))
        self._run = (first, first + len(slots)) if contiguous else None
        self.mask = self._causal_mask() if count > 1 or min(starts) != max(starts) else None

    def _causal_mask(self) -> Tensor:
        keys = torch.arange(self.length, device=self._kv.device)
        hidden = keys > self.positions[:, None, :, None]
        return torch.zeros(hidden.shape, device=hidden.device, dtype=self._kv.dtype).masked_fill_(
            hidden, float("-inf")
        )

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write `[n, count, heads, head_dim]`; returns all keys and values, `[n, length, heads, head_dim]`.

        Rows beyond a sequence's own length are leftovers; `mask` hides them.
        """
        slots = self._slots[:, None]
        keys, values = self._kv[layer, 0], self._kv[layer, 1]
        keys[slots, self.positions] = key
        values[slots, self.positions] = value
        if self._run:
            begin, end = self._run
            return keys[begin:end, : self.length], values[begin:end, : self.length]
        return keys[self._slots, : self.length], values[self._slots, : self.length]


@dataclass(frozen=True, eq=False)
class CrossKv:
    """One source's keys and values for every decoder layer, `[layers, 2, source, heads, head_dim]`."""

    kv: Tensor

    @property
    def length(self) -> int:
        """Source positions."""
        return self.kv.shape[2]


@dataclass(frozen=True, eq=False)
class CrossBatch:
    """The sources of a step, padded: `kv` `[layers, 2, sources, longest, heads, head_dim]`.

    Each source is read once for all its rows: `rows_of` `[sources, widest]` lists the batch rows of each
    source (padded with row 0), `place_of` `[n]` finds a row in that list again. Both are None when rows and
    sources are the same. `mask` is additive `[sources, 1, 1, longest]` or None.
    """

    kv: Tensor
    mask: Tensor | None
    rows_of: Tensor | None = None
    place_of: Tensor | None = None


def padding_mask(lengths: Sequence[int], device: torch.device, dtype: torch.dtype) -> Tensor | None:
    """Additive `[n, 1, 1, longest]` that hides padding; None when nothing is padded."""
    longest = max(lengths)
    if min(lengths) == longest:
        return None
    hidden = torch.arange(longest, device=device) >= torch.tensor(lengths, device=device)[:, None]
    mask = torch.zeros(hidden.shape, device=device, dtype=dtype).masked_fill_(hidden, float("-inf"))
    return mask[:, None, None, :]


def split_sources(kv: Tensor, lengths: Sequence[int]) -> list[CrossKv]:
    """Cut a padded `[layers, 2, n, longest, heads, head_dim]` into one unpadded CrossKv per source."""
    return [CrossKv(kv[:, :, index, :length].clone()) for index, length in enumerate(lengths)]


def gather_sources(per_row: Sequence[CrossKv]) -> CrossBatch:
    """Pad the sources of a batch's rows; rows that share a source follow one another."""
    sources: list[CrossKv] = []
    members: list[list[int]] = []
    for row, cross in enumerate(per_row):
        if not sources or sources[-1] is not cross:
            sources.append(cross)
            members.append([])
        members[-1].append(row)
    first = sources[0].kv
    lengths = [cross.length for cross in sources]
    layers, two, _, heads, head_dim = first.shape
    kv = first.new_zeros((layers, two, len(sources), max(lengths), heads, head_dim))
    for index, cross in enumerate(sources):
        kv[:, :, index, : cross.length] = cross.kv
    mask = padding_mask(lengths, first.device, first.dtype)
    widest = max(len(rows) for rows in members)
    if widest == 1:
        return CrossBatch(kv, mask)
    rows_of = [rows + [0] * (widest - len(rows)) for rows in members]
    place_of = [source * widest + place for source, rows in enumerate(members) for place in range(len(rows))]
    return CrossBatch(kv, mask, torch.tensor(rows_of, device=first.device),
                      torch.tensor(place_of, device=first.device))
