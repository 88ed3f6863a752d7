"""Draft proposers of speculative decoding. A model without one keeps the defaults."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import USIZE_MAX, DevicePtr, GenerateResult, SamplingParams, SequenceState


class ModelDraft(ABC):
    """Proposals of a multi-token-prediction head (MTP) or a block drafter (DFlash), and their state."""

    @abstractmethod
    def generate_speculative(
        self, tokens: Sequence[int], params: SamplingParams, num_drafts: int
    ) -> GenerateResult:
        """Generate for one prompt with the model's own drafts. No default in the seed; its NLLB refuses."""

    @abstractmethod
    def has_proposer(self) -> bool:
        """Whether any drafting is available. No default in the seed; its NLLB says False."""

    @abstractmethod
    def has_self_speculative(self) -> bool:
        """Whether the model can draft for itself. No default in the seed; its NLLB says False."""

    @abstractmethod
    def decode_draft(self, token: int, seq: SequenceState, stream: int = 0) -> DevicePtr:
        """Draft step of self-speculation; returns logits. No default in the seed; its NLLB refuses."""

    @abstractmethod
    def save_hidden_for_mtp(self, token_idx: int, stream: int = 0) -> None:
        """Keep the hidden state at `token_idx` for the next proposal. No default; NLLB does nothing."""

    @abstractmethod
    def run_mtp_propose(
        self, token: int, position: int, seq: SequenceState, stream: int = 0
    ) -> int | None:
        """One draft from the kept hidden state, None without a proposer. No default; NLLB answers None."""

    @abstractmethod
    def run_mtp_propose_multi(
        self,
        token: int,
        position: int,
        num_drafts: int,
        seq: SequenceState,
        stream: int = 0,
        grammar_bitmask: Sequence[int] | None = None,
    ) -> list[int]:
        """Up to `num_drafts` drafts from the kept hidden state. No default; NLLB answers an empty list."""

    @abstractmethod
    def trim_proposer_state(self, seq: SequenceState, num_accepted: int, stream: int = 0) -> None:
        """Tell the proposer how many drafts were accepted. No default; NLLB does nothing."""

    def mtp_slot_draft_capacity(self, slot_idx: int) -> int:
        """Most drafts that slot's recurrent state can take. Seed's default: USIZE_MAX, no limit."""
        return USIZE_MAX

    def dflash_gamma(self) -> int | None:
        """Block size of the block drafter, None without one. Seed's default: None."""
        return None

    def stash_verify_hidden_rows(self, rows: Sequence[int], stream: int = 0) -> None:
        """Copy hidden row rows[i] of the last verify into stash slot i. Seed's default: an error."""
        raise UnsupportedByModel("stash_verify_hidden_rows")

    def stash_verify_catchup_rows(self, slot_rows: Sequence[tuple[int, int]]) -> None:
        """Copy verify rows into the drafter's catch-up stash, (slot, row) pairs. Seed's default: nothing."""
        return None

    def run_mtp_catchup_batched(
        self,
        tokens: Sequence[Sequence[int]],
        first_slot: Sequence[int],
        first_pos: Sequence[int],
        seqs: Sequence[SequenceState],
    ) -> int:
        """Append one drafter row per accepted draft; returns the rows written. Seed's default: 0."""
        return 0

    def save_hidden_for_mtp_from_stash(self, idx: int, stream: int = 0) -> None:
        """`save_hidden_for_mtp` from stash slot `idx`. Seed's default: an error."""
        raise UnsupportedByModel("save_hidden_for_mtp_from_stash")

    def run_mtp_propose_batched(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        stash_idx: Sequence[int],
        num_drafts: int,
        seqs: Sequence[SequenceState],
        stream: int = 0,
        out_conf: list[list[float]] | None = None,
    ) -> list[list[int]] | None:
        """`num_drafts` drafts for each sequence, one drafter forward per draft position.

        `out_conf`, when given, receives the drafts' confidences. Seed's default: None, no batched proposer.
        """
        return None

    def mtp_propose_batch_max(self) -> int:
        """Widest batch of `run_mtp_propose_batched`. Seed's default: 1."""
        return 1

    def save_hidden_for_catchup(self, token_idx: int, pos: int) -> None:
        """Keep a serially decoded token's hidden state for the drafter. Seed's default: nothing."""
        return None

    def save_dflash_hidden_for_propose(self, token_idx: int, stream: int = 0) -> None:
        """Capture row `token_idx` of each capture layer for the next proposal. Seed's default: nothing."""
        return None

    def dflash_accept_append(self, seq: SequenceState) -> None:
        """Append row 1 of the drafter's scratch to its context. Seed's default: nothing."""
        return None

    def dflash_eagle_accept_append(self, seq: SequenceState) -> None:
        """Append scratch rows 0 and 1 at positions seq_len - 2 and seq_len - 1. Seed's default: nothing."""
        return None

    def dflash_eagle_kgamma_append(self, seq: SequenceState, num_accepted: int, base_pos: int) -> None:
        """Append scratch rows 0..=num_accepted from position `base_pos`. Seed's default: nothing."""
        return None

    def dflash_serial_ctx_append(self, seq: SequenceState) -> None:
        """Append the row of a token decoded while speculation is suspended. Seed's default: nothing."""
        return None

    def commit_ctx(self, seq: SequenceState, num_committed: int, base_pos: int, scratch_row: int) -> None:
        """Append `num_committed` scratch rows from `scratch_row`, stamped from `base_pos`. Default: none."""
        return None

    def dflash_capture_band(self) -> int:
        """Scratch rows per sequence of a batched verify. Seed's default: 0, no block drafter."""
        return 0

    def read_deferred_draft_token(self) -> int:
        """The draft id that the proposer left on the device. Seed's default: 0."""
        return 0
