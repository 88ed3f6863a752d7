"""ModelDraft, ModelVerify and ModelSsmState of NllbGpuModel: the answers of a model that has none."""

from collections.abc import Sequence

from nllb_engine.errors import UnsupportedByModel
from nllb_engine.interface import (
    DevicePtr,
    GenerateResult,
    SamplingParams,
    SequenceState,
)
from nllb_engine.nllb_gpu_model.base import NllbBase


class NoDraft(NllbBase):
    """No proposer: questions are answered, drafting is refused, bookkeeping does nothing."""

    def generate_speculative(
        self, tokens: Sequence[int], params: SamplingParams, num_drafts: int
    ) -> GenerateResult:
        """Refused: NLLB has no proposer."""
        raise UnsupportedByModel("generate_speculative", "use prefill and decode")

    def has_proposer(self) -> bool:
        """False."""
        return False

    def has_self_speculative(self) -> bool:
        """False."""
        return False

    def decode_draft(self, token: int, seq: SequenceState, stream: int = 0) -> DevicePtr:
        """Refused: NLLB has no proposer."""
        raise UnsupportedByModel("decode_draft", "use decode")

    def save_hidden_for_mtp(self, token_idx: int, stream: int = 0) -> None:
        """Nothing."""

    def run_mtp_propose(
        self, token: int, position: int, seq: SequenceState, stream: int = 0
    ) -> int | None:
        """None: no proposer."""
        return None

    def run_mtp_propose_multi(
        self,
        token: int,
        position: int,
        num_drafts: int,
        seq: SequenceState,
        stream: int = 0,
        grammar_bitmask: Sequence[int] | None = None,
    ) -> list[int]:
        """No drafts."""
        return []

    def trim_proposer_state(self, seq: SequenceState, num_accepted: int, stream: int = 0) -> None:
        """Nothing."""


class NoVerify(NllbBase):
    """Without drafts there is nothing to verify: every form is refused."""

    def decode_verify(self, tokens: Sequence[int], seq: SequenceState, stream: int = 0) -> list[int]:
        """Refused."""
        raise UnsupportedByModel("decode_verify", "use decode")

    def decode_verify_graphed(
        self, tokens: tuple[int, int], seq: SequenceState, stream: int = 0
    ) -> tuple[int, int]:
        """Refused."""
        raise UnsupportedByModel("decode_verify_graphed", "use decode")

    def decode_verify_graphed_k3(
        self, tokens: tuple[int, int, int], seq: SequenceState, stream: int = 0
    ) -> tuple[int, int, int]:
        """Refused."""
        raise UnsupportedByModel("decode_verify_graphed_k3", "use decode")

    def decode_verify_graphed_k4(
        self, tokens: tuple[int, int, int, int], seq: SequenceState, stream: int = 0
    ) -> tuple[int, int, int, int]:
        """Refused."""
        raise UnsupportedByModel("decode_verify_graphed_k4", "use decode")


class NoSsmState(NllbBase):
    """No recurrent layers: checkpoints and rollbacks have nothing to do."""

    def checkpoint_ssm_states(self, seq: SequenceState) -> None:
        """Nothing."""

    def rollback_ssm_states(self, seq: SequenceState, num_accepted: int) -> None:
        """Nothing."""
