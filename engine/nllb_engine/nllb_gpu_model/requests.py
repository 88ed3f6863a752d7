"""Checks of what a caller hands in, before anything is computed. Pure; every refusal is an InvalidRequest."""

import math
from collections.abc import Sequence

from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.errors import InvalidRequest
from nllb_engine.interface import BeamReq, Limits
from nllb_engine.languages import source_layout

MAX_LENGTH_PENALTY = 10.0
"""Beyond it a length of 2048 leaves float32."""


def encoder_input(
    tokens: Sequence[int], src_lang_id: int, config: ModelConfig, lang: NllbLang, limits: Limits
) -> list[int]:
    """The source laid out with its language and end token, checked to be servable."""
    if not tokens:
        raise InvalidRequest("the source is empty; send at least one token")
    if len(tokens) > limits.max_source_tokens:
        raise InvalidRequest(f"the source has {len(tokens)} tokens, but this model takes "
                             f"{limits.max_source_tokens} at most; split the text")
    for token in tokens:
        if not 0 <= token < config.vocab_size or token == config.pad_token_id:
            raise InvalidRequest(f"token id {token} is not a source piece of this model "
                                 f"(vocabulary {config.vocab_size})")
    language = _language(src_lang_id or lang.src_lang_id, "source", config, lang)
    return source_layout(tokens, language, config.eos_token_id, lang.legacy_behaviour)


def target_language(tgt_lang_id: int, config: ModelConfig, lang: NllbLang) -> int:
    """The id that the decoder is forced to begin with; 0 means the deployment's default."""
    return _language(tgt_lang_id or lang.tgt_lang_id, "target", config, lang)


def decoder_tokens(tokens: Sequence[int], vocab_size: int) -> None:
    """Check ids that are to be decoded next."""
    for token in tokens:
        if not 0 <= token < vocab_size:
            raise InvalidRequest(f"token id {token} is outside the vocabulary of {vocab_size}")


def row_count(n: int, max_batch: int) -> None:
    """Check the number of rows of one forward."""
    if not 1 <= n <= max_batch:
        raise InvalidRequest(f"a forward takes 1 to {max_batch} rows, not {n}")


def beam_request(req: BeamReq, limits: Limits) -> None:
    """Check the search parameters of a beam request."""
    if not 1 <= req.num_beams <= limits.max_batch:
        raise InvalidRequest(f"num_beams is {req.num_beams}; this model takes 1 to {limits.max_batch}")
    if req.max_new < 1:
        raise InvalidRequest(f"max_new is {req.max_new}; at least 1 token must be allowed")
    if not math.isfinite(req.length_penalty) or abs(req.length_penalty) > MAX_LENGTH_PENALTY:
        raise InvalidRequest(f"length_penalty is {req.length_penalty}; it must lie between "
                             f"-{MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}")
    if req.early_stopping not in (True, False, "never"):
        raise InvalidRequest(f'early_stopping is {req.early_stopping!r}; it must be true, false or "never"')


def _language(token: int, side: str, config: ModelConfig, lang: NllbLang) -> int:
    if token == 0:
        raise InvalidRequest(f"no {side} language: name one, or give the deployment a default")
    known = token in lang.language_ids if lang.language_ids else 0 < token < config.vocab_size
    if not known:
        raise InvalidRequest(f"{side} language id {token} is not a language of this model")
    return token
