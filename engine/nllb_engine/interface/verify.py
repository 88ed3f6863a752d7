"""Verification of drafted tokens. A model without a drafter keeps the defaults and refuses the four forms."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface.values import SequenceState, VerifyBatchedOpts

_DEFAULT_OPTS = VerifyBatchedOpts()


class ModelVerify(ABC):
    """Verify passes: run several known tokens at once and return the argmax after each."""

    @abstractmethod
    def decode_verify(self, tokens: Sequence[int], seq: SequenceState, stream: int = 0) -> list[int]:
        """Run `tokens` in one pass; returns the argmax id at each position, and the sequence advances by all.

        No default in the seed; its NLLB refuses.
        """

    @abstractmethod
    def decode_verify_graphed(
        self, tokens: tuple[int, int], seq: SequenceState, stream: int = 0
    ) -> tuple[int, int]:
        """Verify one token and one draft. No default in the seed; its NLLB refuses."""

    @abstractmethod
    def decode_verify_graphed_k3(
        self, tokens: tuple[int, int, int], seq: SequenceState, stream: int = 0
    ) -> tuple[int, int, int]:
        """Verify one token and two drafts. No default in the seed; its NLLB refuses."""

    @abstractmethod
    def decode_verify_graphed_k4(
        self, tokens: tuple[int, int, int, int], seq: SequenceState, stream: int = 0
    ) -> tuple[int, int, int, int]:
        """Verify one token and three drafts. No default in the seed; its NLLB refuses."""

    def can_batch_verify(self, ks: Sequence[int]) -> bool:
        """Whether `decode_verify_batched` can run sequences of ks[i] rows each. Seed's default: False."""
        return False

    def decode_verify_batched(
        self,
        tokens: Sequence[int],
        ks: Sequence[int],
        seqs: Sequence[SequenceState],
        stream: int = 0,
        opts: VerifyBatchedOpts = _DEFAULT_OPTS,
    ) -> list[int]:
        """Verify several sequences in one forward; rows are flat, sequence after sequence.

        Returns sum(ks) argmax ids in that order; sequence i advances by ks[i]. Seed's default: an error.
        """
        raise UnsupportedByModel("decode_verify_batched")

    def decode_verify_graphed_kgamma(
        self, tokens: Sequence[int], seq: SequenceState, stream: int = 0
    ) -> list[int]:
        """Verify one token and a drafter's whole block. Seed's default: `decode_verify`."""
        return self.decode_verify(tokens, seq, stream)

    def decode_verify_dflash(self, tokens: Sequence[int], seq: SequenceState, stream: int = 0) -> list[int]:
        """Block-drafter verify. Seed's default: `decode_verify_graphed_kgamma`."""
        return self.decode_verify_graphed_kgamma(tokens, seq, stream)

    def decode_and_verify_fused(
        self, tokens: Sequence[int], seq: SequenceState, stream: int = 0
    ) -> list[int]:
        """Decode tokens[0] and verify the rest in one forward. Seed's default: as the whole-block verify."""
        return self.decode_verify_graphed_kgamma(tokens, seq, stream)

    def gdn_fold_accepted(self, slots: Sequence[int], accepted_rows: Sequence[int], k_rows: int) -> bool:
        """After a write-on-accept verify: commit the recurrent state of each slot at its accepted rows.

        True means committed here. Seed's default: False, nothing was folded.
        """
        return False
