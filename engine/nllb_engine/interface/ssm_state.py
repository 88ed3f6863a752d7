"""Recurrent state beside the KV cache. An encoder-decoder has none and keeps the defaults."""

from abc import ABC, abstractmethod

from nllb_engine.interface.values import SequenceState


class ModelSsmState(ABC):
    """Checkpoint, rollback and snapshots of recurrent (SSM) state."""

    @abstractmethod
    def checkpoint_ssm_states(self, seq: SequenceState) -> None:
        """Remember the state before a verify. No default in the seed; its NLLB does nothing."""

    @abstractmethod
    def rollback_ssm_states(self, seq: SequenceState, num_accepted: int) -> None:
        """Go back to where `num_accepted` tokens were accepted. No default; NLLB does nothing."""

    def has_ssm_layers(self) -> bool:
        """Whether lowering seq_len leaves state behind that must be restored. Seed's default: False."""
        return False

    def decode_rollback_unsupported(self) -> bool:
        """Whether a decode cannot be rolled back at all. Seed's default: False."""
        return False

    def decode_rollback_ring_slots(self) -> int:
        """Snapshots kept per active sequence. Seed's default: 0, none."""
        return 0

    def save_decode_ssm_snapshot(self, seq: SequenceState, ring_slot: int) -> None:
        """Save the state into `ring_slot`, below decode_rollback_ring_slots(). Seed's default: nothing."""
        return None

    def restore_decode_ssm_snapshot(self, seq: SequenceState, ring_slot: int) -> None:
        """Restore what `save_decode_ssm_snapshot` wrote. Seed's default: nothing."""
        return None

    def decode_marconi_checkpoint(self, seq: SequenceState) -> None:
        """During decode, save a block-aligned snapshot for the prefix cache. Seed's default: nothing."""
        return None

    def start_checkpoint_async(self, seq: SequenceState) -> None:
        """Start the checkpoint on the secondary stream; `sync_secondary` before the next verify.

        Seed's default: the synchronous checkpoint.
        """
        self.checkpoint_ssm_states(seq)

    def start_rollback_and_checkpoint_async(self, seq: SequenceState, num_accepted: int) -> None:
        """Roll back, then checkpoint, on the secondary stream. Seed's default: both, synchronously."""
        self.rollback_ssm_states(seq, num_accepted)
        self.checkpoint_ssm_states(seq)

    def sync_secondary(self) -> None:
        """Wait for the secondary stream's work. Seed's default: nothing."""
        return None

    def commit_accepted_prefix(self, seq: SequenceState, num_accepted: int, k: int) -> None:
        """Commit the accepted prefix of a k-row verify to the live state. Seed's default: nothing."""
        return None

    def ssm_snapshot_occupancy(self) -> tuple[int, int] | None:
        """(used, total) snapshots, or None without a snapshot pool. Seed's default: None."""
        return None
