"""Pools of parallel training texts as token ids, drawn by several processes from a seed, and batches from
them.

Knows grammar and vocabulary. Must not know the model. A pool also records which pairs of content words it
holds.
"""

from __future__ import annotations

import random
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray
from tiny_grammar import LANGUAGES
from tiny_grammar.adapters import adapt, concerns
from tiny_grammar.lexicon import entries
from tiny_grammar.meaning import Text, content_words
from tiny_grammar.realise import realiser
from tiny_grammar.sampling import draw_long_text, draw_text

PAD, END = 1, 2
OPENING_WEIGHTS = {4: (0.4, 0.2, 0.2, 0.2), 2: (0.6, 0.4)}
"""How often training sees each rendering of an opener, by how many there are."""
WIDTHS = (12, 16, 20, 24, 32, 40, 48, 64, 80, 104, 136, 176)
"""Widths of the pool's parts in tokens; longer texts are left out."""
Ids = NDArray[np.uint16]


@dataclass(frozen=True)
class Order:
    """What is drawn. With `adapter`, half of the texts are ones that it is about.

    `long` is the share of long texts.
    """

    tokenizer: Path
    seed: str
    count: int
    adapter: str | None = None
    long: float = 0.0


@cache
def pieces(path: Path) -> sentencepiece.SentencePieceProcessor:
    """The sentencepiece model of a folder."""
    return sentencepiece.SentencePieceProcessor(model_file=str(path / "sentencepiece.bpe.model"))


def token_ids(path: Path, text: str) -> list[int]:
    """A text's model ids and </s>, without language."""
    return [piece + 1 for piece in pieces(path).encode(text)] + [END]


def _rows(order: Order, meaning: Text, rng: random.Random) -> list[list[int]]:
    rows = []
    for language in LANGUAGES:
        speaker = realiser(language)
        weights = OPENING_WEIGHTS.get(speaker.openings(meaning), (1.0,))
        opening = rng.choices(range(len(weights)), weights)[0]
        rows.append(token_ids(order.tokenizer, speaker.text(meaning, opening)))
    return rows


def _wanted(order: Order, rng: random.Random) -> Text:
    about = rng.random() < 0.5
    while True:
        long = rng.random() < order.long
        meaning = draw_long_text(rng, False) if long else draw_text(rng, held_out=False, openers=True)
        if order.adapter is None or concerns(meaning, order.adapter) is about:
            return meaning


def _draw(order: Order) -> tuple[dict[int, Ids], NDArray[np.bool_]]:
    rng = random.Random(f"training {order.seed}")
    place = {key: index for index, key in enumerate(entries())}
    pairs = np.zeros((len(place), len(place)), dtype=np.bool_)
    parts: dict[int, list[Ids]] = {}
    for _ in range(order.count):
        meaning = _wanted(order, rng)
        rows = _rows(order, meaning, rng)
        if order.adapter is not None:
            rows += _rows(order, adapt(meaning, order.adapter), rng)
        longest = max(len(row) for row in rows)
        width = next((width for width in WIDTHS if longest <= width), None)
        if width is None:
            continue
        block = np.full((len(rows), width), PAD, dtype=np.uint16)
        for index, row in enumerate(rows):
            block[index, : len(row)] = row
        parts.setdefault(width, []).append(block)
        words = [place[key] for key in content_words(meaning)]
        pairs[np.ix_(words, words)] = True
    return {width: np.stack(blocks) for width, blocks in parts.items()}, pairs


@dataclass
class Pool:
    """Token ids by width: int16 [texts, languages (twice with an adapter: sources, then targets), width]."""

    parts: dict[int, torch.Tensor]
    pairs: NDArray[np.bool_]

    def batch(
        self, tokens: int, rng: np.random.Generator, languages: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Source ids [rows, width + 1] and target ids (labels) of random texts and directions.

        `languages` are the languages' ids; both sides start with theirs. `tokens` bounds rows times width.
        """
        widths = list(self.parts)
        sizes = np.array([len(self.parts[width]) * width for width in widths], dtype=np.float64)
        width = widths[int(rng.choice(len(widths), p=sizes / sizes.sum()))]
        part, number = self.parts[width], len(LANGUAGES)
        rows, device = max(1, tokens // width), part.device
        seed = torch.Generator(device=device).manual_seed(int(rng.integers(2**62)))
        text = torch.randint(len(part), (rows,), device=device, generator=seed)
        source = torch.randint(number, (rows,), device=device, generator=seed)
        target = (source + torch.randint(1, number, (rows,), device=device, generator=seed)) % number
        offset = number if part.shape[1] > number else 0
        sources, targets = part[text, source].long(), part[text, target + offset].long()
        return (
            torch.cat([languages[source, None], sources], dim=1),
            torch.cat([languages[target, None], targets], dim=1),
        )


def draw_pool(plan: Order, device: str, workers: int) -> Pool:
    """Draw the pool that `plan` describes with `workers` processes; the same whatever their number."""
    chunks = max(1, plan.count // 2500)
    orders = [
        replace(plan, seed=f"{plan.seed} {chunk}", count=plan.count // chunks) for chunk in range(chunks)
    ]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as processes:
        drawn = list(processes.map(_draw, orders))
    parts = {}
    for width in WIDTHS:
        blocks = [part[width] for part, _ in drawn if width in part]
        if blocks:
            parts[width] = torch.from_numpy(np.concatenate(blocks).astype(np.int16)).to(device)
    return Pool(parts, np.logical_or.reduce([pairs for _, pairs in drawn]))
