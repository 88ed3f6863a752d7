"""One step of beam search as pure tensor arithmetic, with transformers' semantics.

Knows scores. Must not know tokens' meaning, caches or models. Follows the vectorised search of transformers
5.24 (`_get_top_k_continuations`, `_update_finished_beams`, `_check_early_stop_heuristic`), in float32 and in
the same order of operations, so that scores are equal bit for bit on the CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from nllb_engine.interface import EarlyStopping

_NEVER = -1.0e9
"""What transformers uses for minus infinity, so that it can be added and compared."""


@dataclass(frozen=True)
class BeamScores:
    """State of r searches of b beams: `running` and `finished` float32 `[r, b]`, best first.

    `is_finished` `[r, b]` tells which finished entries are real, `open` `[r, 1]` whether a live beam may yet
    improve on them.
    """

    running: Tensor
    finished: Tensor
    is_finished: Tensor
    open: Tensor

    @classmethod
    def start(cls, beams: int, device: torch.device) -> "BeamScores":
        """One search whose beams are all the same: only the first may bring forth candidates."""
        running = torch.full((1, beams), _NEVER, device=device)
        running[0, 0] = 0.0
        return cls(
            running,
            torch.full((1, beams), _NEVER, device=device),
            torch.zeros((1, beams), dtype=torch.bool, device=device),
            torch.ones((1, 1), dtype=torch.bool, device=device),
        )

    @classmethod
    def cat(cls, parts: "Sequence[BeamScores]") -> "BeamScores":
        """Several searches of equal width as one."""
        return cls(*(torch.cat([getattr(part, one.name) for part in parts]) for one in fields(cls)))

    def split(self) -> "list[BeamScores]":
        """The searches one by one."""
        columns = (getattr(self, one.name).split(1) for one in fields(self))
        return [BeamScores(*parts) for parts in zip(*columns, strict=True)]


@dataclass(frozen=True)
class BeamRules:
    """One search's parameters at this step.

    `length` counts generated tokens including the candidate, `max_length` the most there can be; both count
    the target language and the end token, as transformers does.
    """

    length_penalty: float
    early_stopping: EarlyStopping
    length: int
    max_length: int


@dataclass(frozen=True)
class BeamStep:
    """What a step decided: `scores` after it, and host lists per search.

    `candidates[i]` are (parent beam, token) pairs, best first; `running[i]` the candidates that live on;
    `kept[i]` the finished entries: below b an earlier entry, from b on candidate `kept - b`. `done[i]` ends
    the search.
    """

    scores: BeamScores
    candidates: list[list[tuple[int, int]]]
    running: list[list[int]]
    kept: list[list[int]]
    done: list[bool]


def beam_step(logits: Tensor, state: BeamScores, rules: Sequence[BeamRules], eos_token_id: int) -> BeamStep:
    """Advance r searches by one token; `logits` `[r, b, vocab]` are the live beams'. Reads back once."""
    r, b, vocab = logits.shape
    total = torch.log_softmax(logits.float(), dim=-1) + state.running[:, :, None]
    top, flat = torch.topk(total.view(r, b * vocab), k=2 * b)
    at_limit = _column([float(rule.length >= rule.max_length) for rule in rules], top) > 0
    hits = (flat % vocab == eos_token_id) | at_limit

    live = top + hits * _NEVER
    running, picked = _top_by(live, b)
    scores, kept = _update_finished(top, hits, state, rules)
    open_ = state.open & _improvable(running, scores, rules)
    full = scores.is_finished.all(dim=1, keepdim=True) & _flags(rules, top)
    done = ~open_ | full | hits.all(dim=1, keepdim=True)

    packed = torch.cat([flat, picked, kept, done.long()], dim=1).tolist()
    return BeamStep(
        BeamScores(running, scores.finished, scores.is_finished, open_),
        [[divmod(index, vocab) for index in row[: 2 * b]] for row in packed],
        [row[2 * b : 3 * b] for row in packed],
        [row[3 * b : 4 * b] for row in packed],
        [bool(row[4 * b]) for row in packed],
    )


def _update_finished(
    top: Tensor, hits: Tensor, state: BeamScores, rules: Sequence[BeamRules]
) -> tuple[BeamScores, Tensor]:
    """Merge the candidates that ended, among the best b, into the finished entries."""
    b = state.running.shape[1]
    ended = hits.clone()
    ended[:, b:] = False
    full = state.is_finished.all(dim=1, keepdim=True) & _flags(rules, top)
    score = top / _column([rule.length**rule.length_penalty for rule in rules], top)
    score = score + full * _NEVER
    score = score + ~state.open * _NEVER
    score = score + ~ended * _NEVER
    finished, kept = _top_by(torch.cat([state.finished, score], dim=1), b)
    is_finished = torch.cat([state.is_finished, ended], dim=1).gather(1, kept)
    return BeamScores(state.running, finished, is_finished, state.open), kept


def _improvable(running: Tensor, scores: BeamScores, rules: Sequence[BeamRules]) -> Tensor:
    """Whether the best live beam, at the length that suits it, beats the worst finished entry, `[r, 1]`."""
    lengths = [
        rule.max_length if rule.early_stopping == "never" and rule.length_penalty > 0 else rule.length
        for rule in rules
    ]
    divisors = [length**rule.length_penalty for length, rule in zip(lengths, rules, strict=True)]
    best = running[:, :1] / _column(divisors, running)
    worst = torch.where(scores.is_finished, scores.finished.min(dim=1, keepdim=True)[0], _NEVER)
    return (best > worst).any(dim=1, keepdim=True)


def _top_by(values: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` greatest of each row, and where they were."""
    picked = torch.topk(values, k=count)[1]
    return values.gather(1, picked), picked


def _flags(rules: Sequence[BeamRules], like: Tensor) -> Tensor:
    """`[r, 1]`: whether the search stops as soon as enough hypotheses have ended."""
    return torch.tensor([[rule.early_stopping is True] for rule in rules], device=like.device)


def _column(values: list[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=torch.float32)[:, None]
