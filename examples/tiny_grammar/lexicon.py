"""Reads the data files: the words of every language, and which words a held-out text may combine.

Knows the files of `data/`. Must not know grammar: a cell's form is `word`, `word.gender`, with `/plural`
(nouns),
`/past` (English verbs) or `/feminine` (French adjectives) when it is irregular.
"""

from __future__ import annotations

import csv
import random
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
KINDS = ("nouns", "verbs", "adjectives", "adverbs")
GROUPS = 20
"""Content words are dealt into this many groups; see `Entry.group`."""


@dataclass(frozen=True)
class Word:
    """A word of one language: dictionary form, gender (m, f, n or ""), irregular second form or ""."""

    text: str
    gender: str = ""
    other: str = ""


@dataclass(frozen=True)
class Entry:
    """A content word in all languages.

    `group`: training texts never hold two different words of one group, held-out texts hold words of one
    group only.
    So no pair of content words of a held-out text ever occurs in a training text.
    """

    id: str
    kind: str
    category: str
    group: int
    words: dict[str, Word]


def _word(cell: str) -> Word:
    form, _, other = cell.partition("/")
    text, _, gender = form.partition(".")
    return Word(text, gender, other)


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / f"{name}.tsv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines, delimiter="\t"))


@cache
def entries() -> dict[str, Entry]:
    """All content words by id. An id is `kind:name`, as in `nouns:teacher`."""
    found: dict[str, Entry] = {}
    for kind in KINDS:
        rows = _rows(kind)
        for category in dict.fromkeys(row["class"] for row in rows):
            members = [row for row in rows if row["class"] == category]
            random.Random(f"groups of {category}").shuffle(members)
            for place, row in enumerate(members):
                key = f"{kind}:{row['id']}"
                words = {name: _word(cell) for name, cell in row.items() if name not in ("id", "class")}
                found[key] = Entry(key, kind, category, place % GROUPS, words)
    return found


@cache
def by_category() -> dict[str, tuple[Entry, ...]]:
    """Content words by category: person, animal, thing, place, trans, give, intr, motion, quality, manner."""
    categories: dict[str, list[Entry]] = {}
    for entry in entries().values():
        categories.setdefault(entry.category, []).append(entry)
    return {name: tuple(members) for name, members in categories.items()}


@cache
def languages() -> tuple[str, ...]:
    """NLLB's codes of the languages, in the order of the lexicon's columns."""
    return tuple(next(iter(entries().values())).words)


@cache
def language_rules(language: str) -> dict[str, Any]:
    """The language's closed words, endings and word order, from `data/languages/`."""
    return tomllib.loads((DATA / "languages" / f"{language}.toml").read_text(encoding="utf-8"))


@cache
def names() -> dict[str, list[str]]:
    """Given names and the parts of made-up surnames and codes."""
    return tomllib.loads((DATA / "names.toml").read_text(encoding="utf-8"))


@cache
def domain_terms() -> dict[str, str]:
    """The general word (id of a noun) → the term that the domain wants."""
    return {f"nouns:{row['general']}": f"nouns:{row['domain']}" for row in _rows("terms")}
