"""Translates held-out texts in large batches and counts how many come out exactly right.

Knows the grammar's expectations. Must not know how models are trained.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_grammar import LANGUAGES, Sentence, expected, expected_all
from tiny_grammar.lexicon import entries
from tiny_grammar.sampling import word_pairs

from .pool import END, PAD, pieces, token_ids

Direction = tuple[str, str]


@dataclass(frozen=True)
class Job:
    """One text to translate."""

    sentence: Sentence
    target: str


def directions() -> list[Direction]:
    """All ordered pairs of different languages."""
    return list(permutations(LANGUAGES, 2))


class Translator:
    """Greedy or beam translation of many texts with transformers' `generate`."""

    def __init__(self, model: Any, tokenizer: Path, language_ids: dict[str, int], rows: int) -> None:
        """`rows`: texts per batch for greedy search; beams divide it."""
        self._model, self._tokenizer, self._ids, self._rows = model, tokenizer, language_ids, rows
        model.generation_config.max_length = None

    def _batch(self, jobs: list[Job], beams: int, answers: int) -> list[list[str]]:
        device = self._model.device
        rows = [[self._ids[j.sentence.language], *token_ids(self._tokenizer, j.sentence.text)] for j in jobs]
        width = max(map(len, rows))
        source = torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=device)
        prompt = torch.tensor([[END, self._ids[job.target]] for job in jobs], device=device)
        with torch.inference_mode():
            out = self._model.generate(
                input_ids=source,
                attention_mask=(source != PAD).long(),
                decoder_input_ids=prompt,
                num_beams=beams,
                num_return_sequences=answers,
                do_sample=False,
                max_new_tokens=2 * width + 10,
            )
        processor, limit = pieces(self._tokenizer), pieces(self._tokenizer).get_piece_size()
        texts = [processor.decode([i - 1 for i in row if 3 < i <= limit]) for row in out[:, 2:].tolist()]
        return [texts[i : i + answers] for i in range(0, len(texts), answers)]

    def answers(self, jobs: list[Job], beams: int = 1, answers: int = 1) -> list[list[str]]:
        """The best `answers` translations of each job, in the jobs' order."""
        order = sorted(range(len(jobs)), key=lambda i: len(jobs[i].sentence.text))
        results: list[list[str]] = [[] for _ in jobs]
        size = max(1, self._rows // beams)
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            for index, texts in zip(
                chosen, self._batch([jobs[i] for i in chosen], beams, answers), strict=True
            ):
                results[index] = texts
        return results

    def best(self, jobs: list[Job], beams: int = 1) -> list[str]:
        """The best translation of each job."""
        return [texts[0] for texts in self.answers(jobs, beams)]


def permitted_pairs() -> NDArray[np.bool_]:
    """The pairs of content words that the rule lets any training text hold (bool [words, words]): words of
    different groups, and each word with itself. Every pool's pairs, of whatever seed, are among them.
    """
    groups = np.array([entry.group for entry in entries().values()])
    permitted: NDArray[np.bool_] = (groups[:, None] != groups[None, :]) | np.eye(len(groups), dtype=np.bool_)
    return permitted


def overlap(sentences: list[Sentence], pairs: NDArray[np.bool_]) -> int:
    """How many pairs of content words of the sentences are among the training pairs (bool [words, words])."""
    place = {key: index for index, key in enumerate(entries())}
    found = {pair for sentence in sentences for pair in word_pairs(sentence.meaning)}
    return sum(bool(pairs[place[a], place[b]]) for a, b in found)


def accuracy(translator: Translator, jobs: list[Job], adapter: str | None = None) -> dict[Direction, float]:
    """Share of exact translations per direction, greedy."""
    right: Counter[Direction] = Counter()
    total: Counter[Direction] = Counter()
    for job, text in zip(jobs, translator.best(jobs), strict=True):
        direction = (job.sentence.language, job.target)
        total[direction] += 1
        right[direction] += text == expected(job.sentence, job.target, adapter)
    return {direction: right[direction] / total[direction] for direction in total}


def beam_report(translator: Translator, hard: list[Job], ambiguous: list[Job]) -> dict[str, Any]:
    """How beam 4 differs from greedy on the hard set, and how many right answers n-best finds on the
    ambiguous one.
    """
    greedy, beam = translator.best(hard), translator.best(hard, beams=4)
    wanted = [expected(job.sentence, job.target) for job in hard]
    found = []
    for job, texts in zip(ambiguous, translator.answers(ambiguous, beams=4, answers=4), strict=True):
        found.append(len(set(texts) & set(expected_all(job.sentence, job.target))))
    return {
        "hard_texts": len(hard),
        "differ": sum(a != b for a, b in zip(greedy, beam, strict=True)) / len(hard),
        "greedy_right": sum(a == b for a, b in zip(greedy, wanted, strict=True)) / len(hard),
        "beam_right": sum(a == b for a, b in zip(beam, wanted, strict=True)) / len(hard),
        "ambiguous_texts": len(ambiguous),
        "n_best_finds_two": sum(count >= 2 for count in found) / len(ambiguous),
    }
