"""What a translation asks of the engine and what it gets back, as values.

Knows ids, limits and scores. Must not know text, the model or how requests are batched.
"""

from dataclasses import dataclass
from typing import Literal

from nllb_engine.interface.beam import Hypothesis
from nllb_engine.interface.values import EarlyStopping

FinishReason = Literal["stop", "length"]

DEFAULT_MAX_NEW_TOKENS = 198
"""NLLB's generation_config has max_length 200, of which the start token and the target language take two."""


@dataclass(frozen=True)
class TranslateJob:
    """One source sentence. `tokens` are plain pieces, `adapter_slot` -1 is the base model.

    `max_new_tokens` counts what follows the target language, the end token included; None: see
    `default_max_new_tokens`. `deadline` is a moment of time.monotonic(), in seconds.
    """

    tokens: tuple[int, ...]
    src_lang_id: int
    tgt_lang_id: int
    adapter_slot: int = -1
    num_beams: int = 1
    max_new_tokens: int | None = None
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    deadline: float | None = None


@dataclass(frozen=True)
class JobResult:
    """The best translation; ids without language prefix and end token. Greedy: no score, no hypotheses."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    score: float | None = None
    hypotheses: tuple[Hypothesis, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How a request ended: with a result or an error."""

    job_id: int
    result: JobResult | Exception


def default_max_new_tokens(source_tokens: int) -> int:
    """The limit of a request that names none: transformers' default, or twice the source when that is more.

    The output of a sentence that ends by itself is the same under both; the second only spares long sources
    from being cut.
    """
    return max(DEFAULT_MAX_NEW_TOKENS, 2 * source_tokens)
