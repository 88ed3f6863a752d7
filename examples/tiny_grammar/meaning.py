"""What a text says, apart from any language: the tree that every language spells out.

Knows nouns, clauses and sentences by the ids of the lexicon. Must not know how any language writes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

PRONOUNS = ("1sg", "2sg", "2pol", "3m", "3f", "1pl")
SINGULAR = ("the", "a", "this", "my", "our", "every")
PLURAL = ("many", "several", "few", "all", "count")
LARGEST_WORD = 12
"""Counts from 2 to 12 are written as words unless `Noun.digits`; larger ones are always digits."""


@dataclass(frozen=True)
class Noun:
    """A noun phrase. `count` holds when `determiner` is "count"; `tag` is a name or code copied as it is."""

    head: str
    determiner: str = "the"
    adjectives: tuple[str, ...] = ()
    count: int = 0
    digits: bool = False
    tag: str = ""
    owner: Phrase | None = None

    @property
    def plural(self) -> bool:
        """Whether it speaks of several."""
        return self.determiner in PLURAL


@dataclass(frozen=True)
class Pronoun:
    """A pronoun, only ever the subject; `person` is one of `PRONOUNS` ("2pol" is the polite address)."""

    person: str


@dataclass(frozen=True)
class Name:
    """A person's given name, written alike in all languages."""

    name: str
    feminine: bool


Phrase = Noun | Pronoun | Name


@dataclass(frozen=True)
class Date:
    """A day. `iso` writes it 2031-05-14, otherwise in the language's long form."""

    day: int
    month: int
    year: int
    iso: bool = False


@dataclass(frozen=True)
class Place:
    """Where: `relation` is in, near or behind; where to: "to"."""

    relation: str
    noun: Noun


@dataclass(frozen=True)
class Clause:
    """One verb with its parts. `verb` is "be" for "X is QUALITY", which fills `quality` instead of
    `object`.
    """

    verb: str
    subject: Phrase
    tense: str = "present"
    negated: bool = False
    object: Phrase | None = None
    recipient: Phrase | None = None
    quality: str = ""
    adverb: str = ""
    place: Place | None = None
    date: Date | None = None


@dataclass(frozen=True)
class Sentence:
    """One or two clauses and what stands around them.

    `question` is "" or yesno, where, when, why. `opener` names a group of openings that several
    renderings are
    right for, so a sentence with one is ambiguous.
    """

    first: Clause
    link: str = ""
    second: Clause | None = None
    question: str = ""
    emphatic: bool = False
    salute: bool = False
    opener: str = ""

    @property
    def clauses(self) -> tuple[Clause, ...]:
        """Its clauses, in order."""
        return (self.first,) if self.second is None else (self.first, self.second)

    def map_clauses(self, change: Callable[[Clause], Clause]) -> Sentence:
        """The sentence with `change` done to each clause."""
        second = None if self.second is None else change(self.second)
        return replace(self, first=change(self.first), second=second)


@dataclass(frozen=True)
class Text:
    """A text: one sentence, or a paragraph of several."""

    sentences: tuple[Sentence, ...]


def phrases(clause: Clause) -> Iterator[Phrase]:
    """All noun phrases of a clause, owners included."""
    place = clause.place.noun if clause.place else None
    for phrase in (clause.subject, clause.object, clause.recipient, place):
        while phrase is not None:
            yield phrase
            phrase = phrase.owner if isinstance(phrase, Noun) else None


def content_words(text: Text) -> list[str]:
    """The ids of its content words (nouns, verbs, adjectives, adverbs), with repeats, in no special order."""
    words: list[str] = []
    for clause in (clause for sentence in text.sentences for clause in sentence.clauses):
        words += [clause.verb] if clause.verb != "be" else []
        words += [word for word in (clause.quality, clause.adverb) if word]
        for phrase in phrases(clause):
            if isinstance(phrase, Noun):
                words += [phrase.head, *phrase.adjectives]
    return words
