"""ModelLifecycle and ModelLimits of NllbGpuModel: slots, their owners, and the end."""

from nllb_engine.errors import InvalidRequest
from nllb_engine.interface import NO_SLOT, Limits, SequenceState
from nllb_engine.nllb_gpu_model.base import NllbBase


class NllbLifecycle(NllbBase):
    """One slot per sequence. A slot's owner is known by identity, so a stale free frees nothing."""

    def limits(self) -> Limits:
        """Bounds of a request."""
        return self.core.limits

    def bind_gpu_to_thread(self) -> None:
        """Make the backend's device current in this thread."""
        self.core.gpu.bind_to_thread()

    def alloc_sequence(self) -> SequenceState:
        """A sequence in the lowest free slot; CacheFull when all are taken."""
        if self.core.closed:
            raise InvalidRequest("the model was torn down; build a new one")
        seq = SequenceState(slot_idx=NO_SLOT)
        seq.slot_idx = self.core.slots.take(seq)
        return seq

    def free_sequence(self, seq: SequenceState) -> None:
        """Give back slot, source and adapter reference, each once."""
        if seq.acquired_adapter_slot >= 0:
            self.release_adapter_slot(seq.acquired_adapter_slot)
            seq.acquired_adapter_slot = -1
        if self.core.slots.give_back(seq.slot_idx, seq):
            self._forget(seq.slot_idx)
        seq.slot_idx = NO_SLOT

    def compact_sequence(self, seq: SequenceState, new_slot: int) -> None:
        """Copy the rows to `new_slot` and take it over; InvalidRequest when `seq` owns no slot."""
        old = seq.slot_idx
        self.core.slots.move(old, new_slot, seq)
        if new_slot == old:
            return
        with self.core.work_on(0):
            self.core.self_kv.copy([(old, new_slot)], seq.seq_len)
        self._forget(new_slot)
        if old in self._sources:
            self._sources[new_slot] = self._sources.pop(old)
        if old in self._chunks:
            self._chunks[new_slot] = self._chunks.pop(old)
        seq.slot_idx = new_slot

    def detach_slot_for_reuse(self, seq: SequenceState) -> None:
        """Sever the sequence from its slot; a slot that nobody took over becomes free."""
        if self.core.slots.give_back(seq.slot_idx, seq):
            self._forget(seq.slot_idx)
        seq.slot_idx = NO_SLOT

    def cache_sequence(self, seq: SequenceState) -> None:
        """Nothing: there is no prefix cache yet."""

    def num_free_blocks(self) -> int:
        """Free slots: a block holds one whole sequence."""
        return self.core.slots.free

    def num_total_blocks(self) -> int:
        """All slots."""
        return self.core.slots.total

    def kv_block_bytes(self) -> int:
        """Bytes of one slot's keys and values over all decoder layers."""
        return self.core.self_kv.block_bytes

    def teardown(self) -> None:
        """Release weights, caches and buffers; a second call does nothing."""
        if not self.core.closed:
            self._sources.clear()
            self._chunks.clear()
            self.adapters.close()
            self.core.close()

    def _forget(self, slot: int) -> None:
        self.core.drop_source(self._sources.pop(slot, None))
        self._chunks.pop(slot, None)
