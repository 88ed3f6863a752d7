"""The parallel grammar behind `examples/tiny-nllb`: what the tiny model should say, for tests and demos.

    from tiny_grammar import LANGUAGES, expected, held_out

    for sentence in held_out("eng_Latn", seed=1, count=500):
        assert translate(sentence.text, "eng_Latn", "deu_Latn") == expected(sentence, "deu_Latn")
        assert translate(..., adapter="formal-v1") == expected(sentence, "deu_Latn", "formal-v1")

Standard library only. Must not know the model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .adapters import ADAPTERS, adapt, concerns
from .lexicon import languages
from .meaning import Sentence as SentenceMeaning
from .meaning import Text
from .realise import realiser
from .sampling import draw_long_text, draw_text, word_pairs

LANGUAGES: tuple[str, ...] = languages()
"""NLLB's codes of the languages that the tiny model speaks."""


@dataclass(frozen=True)
class Sentence:
    """A sentence or paragraph in one language together with what it means."""

    text: str
    language: str
    meaning: Text

    @property
    def ambiguous(self) -> bool:
        """Whether several translations are right; `expected_all` lists them."""
        return any(part.opener for part in self.meaning.sentences)


def sentence_of(meaning: Text, language: str, opening: int = 0) -> Sentence:
    """Spell a meaning out in a language."""
    return Sentence(realiser(language).text(meaning, opening), language, meaning)


def expected(sentence: Sentence | str, target: str, adapter: str | None = None) -> str:
    """The right translation of `sentence` into `target`, with an adapter (a folder of
    `examples/adapters/`) or without.

    A `str` is read as English of this grammar. Of several right translations (see `expected_all`) it is
    the most
    usual. Raises KeyError for an unknown language or adapter, ValueError for English that the grammar
    cannot read.
    """
    return expected_all(sentence, target, adapter)[0]


def expected_all(sentence: Sentence | str, target: str, adapter: str | None = None) -> list[str]:
    """All right translations, the most usual first; only sentences with an opener have more than one."""
    meaning = (sentence if isinstance(sentence, Sentence) else read_english(sentence)).meaning
    changed, speaker = adapt(meaning, adapter), realiser(target)
    return [speaker.text(changed, opening) for opening in range(speaker.openings(changed))]


def read_english(text: str) -> Sentence:
    """The meaning of an English text of this grammar. Raises ValueError."""
    from .parse_english import parse

    return Sentence(text, "eng_Latn", parse(text))


def _draw(
    source: str, seed: int | str, count: int, wanted: Callable[[Text], bool], openers: bool = False
) -> Iterator[Sentence]:
    rng = random.Random(f"held out {seed}")
    seen: set[Text] = set()
    while len(seen) < count:
        meaning = draw_text(rng, held_out=True, openers=openers)
        if meaning not in seen and wanted(meaning):
            seen.add(meaning)
            yield sentence_of(meaning, source)


def held_out(source: str, seed: int | str = 0, count: int = 500) -> list[Sentence]:
    """`count` different unambiguous texts whose pairs of content words training lacks; the same for the
    same seed.
    """
    return list(_draw(source, seed, count, lambda meaning: True))


def held_out_long(source: str, seed: int | str = 0, count: int = 100) -> list[Sentence]:
    """Held-out paragraphs and long sentences of about 25 to 60 words."""
    rng = random.Random(f"held out long {seed}")
    return [sentence_of(draw_long_text(rng, held_out=True), source) for _ in range(count)]


def held_out_for(
    adapter: str, source: str, seed: int | str = 0, count: int = 500, about: bool = True
) -> list[Sentence]:
    """Held-out texts that the adapter is about (or, with `about=False`, those that it must leave alone)."""
    return list(
        _draw(source, f"{adapter} {seed}", count, lambda meaning: concerns(meaning, adapter) is about)
    )


def probes(source: str, seed: int | str = 0, count: int = 100) -> list[Sentence]:
    """Held-out texts that every adapter changes, each in its own way: a wrong adapter is seen at once."""

    def wanted(meaning: Text) -> bool:
        return len({meaning, *(adapt(meaning, name) for name in ADAPTERS)}) == 1 + len(ADAPTERS)

    return list(_draw(source, f"probes {seed}", count, wanted))


def hard(source: str, seed: int | str = 0, count: int = 200) -> list[Sentence]:
    """Held-out texts that greedy search gets wrong: the likely first token of the opening leads away from
    the best.

    The opening has one rendering of weight 0.4 and three of weight 0.2 that share their first word.
    """

    def wanted(meaning: Text) -> bool:
        return meaning.sentences[0].opener == "well"

    return list(_draw(source, f"hard {seed}", count, wanted, openers=True))


def ambiguous(source: str, seed: int | str = 0, count: int = 200) -> list[Sentence]:
    """Held-out texts with two right translations each."""

    def wanted(meaning: Text) -> bool:
        return meaning.sentences[0].opener in ("perhaps", "moreover")

    return list(_draw(source, f"ambiguous {seed}", count, wanted, openers=True))


__all__ = [
    "ADAPTERS",
    "LANGUAGES",
    "Sentence",
    "SentenceMeaning",
    "Text",
    "ambiguous",
    "expected",
    "expected_all",
    "hard",
    "held_out",
    "held_out_for",
    "held_out_long",
    "probes",
    "sentence_of",
    "word_pairs",
]
