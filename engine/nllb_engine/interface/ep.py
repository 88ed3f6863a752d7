"""The command protocol of a model spread over several ranks. A model on one device keeps the defaults."""

from collections.abc import MutableSequence, Sequence

from nllb_engine.interface.values import SequenceState


class ModelEp:
    """Commands from rank 0 to the worker ranks."""

    def ep_worker_step(self, slots: MutableSequence[SequenceState | None]) -> bool:
        """On a worker rank: receive one (seq id, command) and run it in `slots`; False ends the worker.

        Errors: EpCommandFailed when the command was received and failed; any other error ends the worker.
        Seed's default: nothing is received. We answer False, so that a worker loop ends instead of spinning.
        """
        return False

    def is_ep(self) -> bool:
        """Whether the model runs this protocol; the scheduler then fuses nothing. Seed's default: False."""
        return False

    def ep_broadcast_cmd(self, cmd: int) -> None:
        """Send a command word to every worker. Seed's default: nothing."""
        return None

    def ep_broadcast_cmd_for_seq(self, seq_id: int, cmd: int) -> None:
        """Send (seq id, command) as the first word of a command. Seed's default: nothing."""
        return None

    def ep_protocol_v2(self) -> bool:
        """Whether each command carries a seq id. Seed's default: False."""
        return False

    def ep_broadcast_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Send a token array to every worker in one broadcast. Seed's default: an empty list."""
        return []
