"""ModelLimits: the bounds a scheduler must know before it calls. Knows numbers only."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds of one model.

    `max_batch` rows per step and slots in all; `max_source_tokens` plain source pieces; `max_rows` decoder
    rows per sequence, start and target language included: at seq_len == max_rows a sequence has ended by
    length.
    """

    max_batch: int
    max_source_tokens: int
    max_rows: int
    eos_token_id: int


class ModelLimits(ABC):
    """Our own capability: what a caller checks so that one request's length never fails a whole batch."""

    @abstractmethod
    def limits(self) -> Limits:
        """The bounds; constant for the model's life."""
