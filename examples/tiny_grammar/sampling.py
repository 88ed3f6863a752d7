"""Draws meanings at random, from a seed: training texts, and held-out texts whose pairs of words training
lacks.

Knows which words may stand together (`Entry.group`). Must not know how languages write them.
"""

from __future__ import annotations

import random
from dataclasses import replace

from .lexicon import GROUPS, by_category, names
from .meaning import SINGULAR, Clause, Date, Name, Noun, Phrase, Place, Pronoun, Sentence, Text, content_words

OPENERS = ("well", "perhaps", "moreover")
LINKS = ("and", "but", "because", "when")
LONG = (13, 26)
"""Content words of a long text."""
QUANTITIES = ("many", "several", "few", "all")


class OutOfWordsError(Exception):
    """The group has no unused word of the category left; the text is drawn anew."""


class WordChooser:
    """Content words for one text: of one `group` (held-out), or of a different group each (training)."""

    def __init__(self, rng: random.Random, group: int | None, repeats: bool) -> None:
        """Draw with `rng`; `group` None means training. With `repeats`, a text out of words says some
        again.
        """
        self._rng = rng
        self._group = group
        self._repeats = repeats
        self._used_groups: set[int] = set()
        self._used: dict[str, str] = {}

    def pick(self, *categories: str) -> str:
        """The id of a word, unused in this text if there is one. Raises OutOfWordsError."""
        for _ in range(12):
            entry = self._rng.choice(by_category()[self._rng.choice(categories)])
            if self._group is not None:
                group = (entry for entry in by_category()[entry.category] if entry.group == self._group)
                unused = [entry for entry in group if entry.id not in self._used]
                if not unused:
                    continue
                entry = self._rng.choice(unused)
            elif entry.group in self._used_groups:
                continue
            self._used[entry.id] = entry.category
            self._used_groups.add(entry.group)
            return entry.id
        again = [key for key, category in self._used.items() if category in categories]
        if not self._repeats or not again:
            raise OutOfWordsError
        return self._rng.choice(again)


class Sampler:
    """Draws one text. `richness` from 0 to 1 is how much its clauses carry."""

    def __init__(self, rng: random.Random, words: WordChooser, richness: float) -> None:
        """Draw with `rng`, the content words from `words`."""
        self._rng = rng
        self._words = words
        self._richness = richness

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _tag(self, category: str) -> str:
        parts, draw = names(), self._rng.choice
        if category == "person":
            return draw(parts["surname_first"]) + draw(parts["surname_middle"]) + draw(parts["surname_last"])
        return f"{draw(parts['code_letters'])}-{self._rng.randint(10, 999)}"

    def noun(self, *categories: str, owned: bool = True) -> Noun:
        """A noun phrase with a head of one of the categories."""
        draw, rich = self._rng, self._richness
        head = self._words.pick(*categories)
        determiner, count, digits = draw.choices(SINGULAR, (8, 3, 2, 1, 1, 1))[0], 0, False
        if self._chance(0.3):
            determiner = draw.choice(QUANTITIES)
            if self._chance(0.6):
                determiner, count, digits = "count", draw.randint(2, 12), self._chance(0.15)
            if count and self._chance(0.15):
                count, digits = draw.randint(13, 99), True
        adjectives = [
            self._words.pick("quality") for chance in (0.15 + 0.45 * rich, 0.2 * rich) if self._chance(chance)
        ]
        phrase = Noun(head, determiner, tuple(adjectives), count, digits)
        if not phrase.plural and self._chance(0.12):
            return replace(phrase, tag=self._tag("person" if categories == ("person",) else "thing"))
        if owned and self._chance(0.08 + 0.22 * rich):
            return replace(phrase, owner=self.noun("person", owned=False))
        return phrase

    def name(self) -> Name:
        """A given name."""
        feminine = self._chance(0.5)
        return Name(self._rng.choice(names()["feminine" if feminine else "masculine"]), feminine)

    def subject(self) -> Phrase:
        """A subject: pronoun, name or noun phrase."""
        kind = self._rng.choices(("noun", "pronoun", "name"), (5, 4, 1.5))[0]
        if kind == "noun":
            return self.noun(*(("person",) if self._chance(0.85) else ("animal",)))
        if kind == "name":
            return self.name()
        return Pronoun(self._rng.choices(("1sg", "2sg", "2pol", "3m", "3f", "1pl"), (2, 4, 2, 2, 2, 2))[0])

    def date(self) -> Date:
        """A date between 2020 and 2039."""
        draw = self._rng
        return Date(draw.randint(1, 28), draw.randint(1, 12), draw.randint(2020, 2039), self._chance(0.25))

    def clause(self) -> Clause:
        """A clause of any kind."""
        draw, rich = self._rng, self._richness
        kind = draw.choices(("trans", "give", "intr", "motion", "be"), (5, 2, 2, 2, 2))[0]
        tense = draw.choice(("present", "past", "future"))
        base = Clause("be", self.subject(), tense, self._chance(0.25))
        if kind == "be":
            subject = base.subject
            if not isinstance(subject, Pronoun) and self._chance(0.5):
                subject = self.noun("thing", "place")
            return replace(base, subject=subject, quality=self._words.pick("quality"))
        clause = replace(base, verb=self._words.pick(kind))
        if kind in ("trans", "give"):
            living = kind == "trans" and self._chance(0.3)
            clause = replace(
                clause, object=self.noun(*(("person",) if living else ("thing", "thing", "animal")))
            )
        if kind == "give":
            clause = replace(clause, recipient=self.name() if self._chance(0.15) else self.noun("person"))
        if kind == "motion":
            clause = replace(clause, place=Place("to", self.noun("place")))
        elif self._chance(0.1 + 0.3 * rich):
            relation = draw.choice(("in", "near", "behind"))
            clause = replace(clause, place=Place(relation, self.noun("place")))
        if self._chance(0.12 + 0.3 * rich) or (kind == "intr" and clause.place is None):
            clause = replace(clause, adverb=self._words.pick("manner"))
        return replace(clause, date=self.date()) if self._chance(0.12 + 0.25 * rich) else clause

    def sentence(self, openers: bool) -> Sentence:
        """A sentence: question, one statement, or two linked ones."""
        draw = self._rng
        first = self.clause()
        salute = self._chance(0.12 if first.subject in (Pronoun("2pol"), Pronoun("2sg")) else 0.03)
        opener = draw.choice(OPENERS) if openers and self._chance(0.08) else ""
        if self._chance(0.2):
            question = draw.choice(("yesno", "yesno", "where", "when", "why"))
            if question == "where":
                first = replace(
                    first, place=first.place if first.place and first.place.relation == "to" else None
                )
            if question == "when":
                first = replace(first, date=None)
            return Sentence(first, question=question, salute=salute, opener=opener)
        emphatic = self._chance(0.15)
        if self._chance(0.1 + 0.4 * self._richness):
            return Sentence(first, draw.choice(LINKS), self.clause(), "", emphatic, salute, opener)
        return Sentence(first, emphatic=emphatic, salute=salute, opener=opener)


def draw_text(rng: random.Random, held_out: bool, openers: bool) -> Text:
    """One text: mostly one sentence, sometimes a paragraph. `openers` lets it be ambiguous."""
    while True:
        group = rng.randrange(GROUPS) if held_out else None
        length = rng.choices((1, 2, 3, 4), (80, 10, 6, 4))[0]
        sampler = Sampler(rng, WordChooser(rng, group, repeats=False), rng.random() ** 1.5)
        try:
            sentences = [sampler.sentence(openers) for _ in range(length)]
        except OutOfWordsError:
            continue
        return Text((sentences[0], *(replace(sentence, opener="") for sentence in sentences[1:])))


def draw_long_text(rng: random.Random, held_out: bool) -> Text:
    """One unambiguous paragraph or long sentence of about 25 to 60 words; it may say a content word again."""
    while True:
        group = rng.randrange(GROUPS) if held_out else None
        sampler = Sampler(rng, WordChooser(rng, group, repeats=True), rng.random() ** 0.7)
        try:
            text = Text(tuple(sampler.sentence(openers=False) for _ in range(rng.choice((1, 2, 3, 4)))))
        except OutOfWordsError:
            continue
        if LONG[0] <= len(content_words(text)) <= LONG[1]:
            return text


def word_pairs(text: Text) -> set[tuple[str, str]]:
    """All pairs of different content words of a text, each pair sorted."""
    distinct = sorted(set(content_words(text)))
    return {(a, b) for place, a in enumerate(distinct) for b in distinct[place + 1 :]}
