"""Sequences, their memory, and the model's end. Blocks are the unit in which KV memory is counted."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import ModelDims, PrefixReclaim, Reader, SequenceState, Writer


class ModelLifecycle(ABC):
    """Allocation, release and counts. Called from the worker thread."""

    @abstractmethod
    def bind_gpu_to_thread(self) -> None:
        """Make the model's device current in this thread; before any other call in it. No default."""

    @abstractmethod
    def alloc_sequence(self) -> SequenceState:
        """A new sequence with its slot and cache. Errors: CacheFull. No default in the seed."""

    @abstractmethod
    def free_sequence(self, seq: SequenceState) -> None:
        """Release the sequence's blocks, slot and adapter reference; nothing when it is detached or freed.

        No default in the seed.
        """

    @abstractmethod
    def compact_sequence(self, seq: SequenceState, new_slot: int) -> None:
        """Move the sequence's cache to `new_slot` and set its slot_idx.

        `new_slot` is free, or belongs to a retired sequence that is detached right after this call; the
        sequence's old slot becomes free. No default in the seed.
        """

    @abstractmethod
    def detach_slot_for_reuse(self, seq: SequenceState) -> None:
        """A retired sequence gives up its slot to the one that `compact_sequence` moved there.

        Sets slot_idx to NO_SLOT, so that freeing it releases only its adapter reference. Call it right after
        that `compact_sequence`. No default in the seed.
        """

    @abstractmethod
    def cache_sequence(self, seq: SequenceState) -> None:
        """Offer the sequence to the prefix cache, before it is freed. No default in the seed."""

    def num_free_blocks(self) -> int:
        """KV blocks that can be allocated now. Seed's default: 0."""
        return 0

    @abstractmethod
    def kv_block_bytes(self) -> int:
        """Bytes of one block, all layers, K and V: num_total_blocks() of them are the pool. No default."""

    def teardown(self) -> None:
        """Release all device memory; the model is unusable afterwards. Seed's default: nothing."""
        return None

    def poll_innerq(self) -> None:
        """Poll a quantisation calibration, once per prefill step. Seed's default: nothing."""
        return None

    def high_speed_swap_dims(self) -> ModelDims | None:
        """Sizes for a weight-swapping host, None when unsupported. Seed's default: None."""
        return None

    def alloc_sequence_for(self, budget_tokens: int) -> SequenceState:
        """`alloc_sequence` for at most `budget_tokens` tokens. Seed's default: the budget is ignored."""
        return self.alloc_sequence()

    def save_sequence_state(self, seq: SequenceState, writer: Writer) -> None:
        """Write the sequence's state in the model's own format, freeing nothing. Default: an error."""
        raise UnsupportedByModel("save_sequence_state")

    def restore_sequence_state(self, seq: SequenceState, num_blocks: int, reader: Reader) -> None:
        """Read what `save_sequence_state` wrote into an allocated sequence. Seed's default: an error."""
        raise UnsupportedByModel("restore_sequence_state")

    def num_total_blocks(self) -> int:
        """All KV blocks of the pool. Seed's default: 0."""
        return 0

    def reclaim_prefix_blocks(self, num_blocks: int) -> int:
        """Evict up to `num_blocks` blocks from the prefix cache; returns how many became free.

        0 means that nothing was evictable and the caller stops asking. Seed's default: 0.
        """
        return 0

    def reclaim_prefix_blocks_for(
        self, prompt: Sequence[int], adapter_slot: int, blocks_needed: int
    ) -> PrefixReclaim:
        """Reclaim until a prefill of `prompt` under `adapter_slot` fits.

        `blocks_needed` is the caller's count for the whole prompt, less what a cached prefix saves. Seed's
        default: no prefix is reused; reclaim runs until enough is free or nothing is evictable.
        """
        while self.num_free_blocks() < blocks_needed:
            if self.reclaim_prefix_blocks(blocks_needed - self.num_free_blocks()) == 0:
                break
        return PrefixReclaim(target=blocks_needed, free=self.num_free_blocks())
