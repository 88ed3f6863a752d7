"""ModelBeam: beam search step by step, so that beams share each step with other requests.

What the seed's interface lacks: its `generate_beam_batch` runs to completion. Knows no tensors.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from nllb_engine.interface.values import BeamReq


@dataclass(frozen=True)
class Hypothesis:
    """One translation: ids without the language prefix and the end token, and its score.

    `score` is the sum of log-probabilities over (generated length)^length_penalty, length counting the
    language token and the end token, as in transformers. `finished` tells an end token (`stop`) from a cut
    by length.
    """

    token_ids: tuple[int, ...]
    score: float
    finished: bool


@dataclass(eq=False)
class BeamHandle:
    """One running beam search. It occupies `rows` rows of each step until `beam_end`.

    `hypotheses` is filled when `done` turns true: best first, at most `req.num_beams`.
    """

    req: BeamReq
    done: bool = False
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """Rows that this search adds to a step, and slots that it holds."""
        return self.req.num_beams


class ModelBeam(ABC):
    """Our own capability: beams step by step. Called from the worker thread only."""

    @abstractmethod
    def beam_begin(self, reqs: Sequence[BeamReq]) -> list[BeamHandle]:
        """Encode all `reqs` in one padded batch and start their beams.

        Takes a reference on each request's adapter and `num_beams` slots. All or nothing. Errors:
        InvalidRequest (ids out of range, empty source, beams or length out of bounds), CacheFull when the
        slots do not suffice.
        """

    @abstractmethod
    def beam_step(self, handles: Sequence[BeamHandle]) -> None:
        """Add one token to every beam of every handle, all rows in one forward; done handles are skipped.

        The handles may differ in languages, adapters, beams and lengths. Errors: InvalidRequest when the
        rows exceed max_batch or a handle has ended.
        """

    @abstractmethod
    def beam_end(self, handle: BeamHandle) -> None:
        """Give back the handle's slots and adapter reference, done or not; a second call does nothing."""
