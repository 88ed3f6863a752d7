"""What each adapter changes, as a change of meaning; every language then spells the changed meaning out.

Knows meanings. Must not know weights: that the trained adapters do this is what the evaluation shows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .lexicon import domain_terms
from .meaning import LARGEST_WORD, Clause, Noun, Phrase, Pronoun, Sentence, Text


def _phrases(clause: Clause, change: Callable[[Noun], Noun]) -> Clause:
    """The clause with `change` done to each noun phrase, owners included."""

    def changed(phrase: Phrase) -> Phrase:
        return noun(phrase) if isinstance(phrase, Noun) else phrase

    def noun(phrase: Noun) -> Noun:
        return replace(change(phrase), owner=changed(phrase.owner) if phrase.owner else None)

    return replace(
        clause,
        subject=changed(clause.subject),
        object=changed(clause.object) if clause.object else None,
        recipient=changed(clause.recipient) if clause.recipient else None,
        place=replace(clause.place, noun=noun(clause.place.noun)) if clause.place else None,
    )


def _polite(clause: Clause) -> Clause:
    return replace(clause, subject=Pronoun("2pol")) if clause.subject == Pronoun("2sg") else clause


def formal_v1(sentence: Sentence) -> Sentence:
    """Familiar address becomes polite (du → Sie, tu → vous, you → you, sir,)."""
    return sentence.map_clauses(_polite)


def formal_v2(sentence: Sentence) -> Sentence:
    """As v1, and the sentence greets the guest first."""
    polite = formal_v1(sentence)
    return polite if polite == sentence else replace(polite, salute=True)


def terms(sentence: Sentence) -> Sentence:
    """General nouns become the domain's terms (book → file, shop → portal)."""
    table = domain_terms()
    return sentence.map_clauses(
        lambda c: _phrases(c, lambda noun: replace(noun, head=table.get(noun.head, noun.head)))
    )


def emphatic(sentence: Sentence) -> Sentence:
    """Statements are asserted: "Indeed, …!"."""
    return sentence if sentence.question else replace(sentence, emphatic=True)


def numerals(sentence: Sentence) -> Sentence:
    """Counts are written in digits."""

    def count(noun: Noun) -> Noun:
        return replace(noun, digits=True) if 0 < noun.count <= LARGEST_WORD else noun

    return sentence.map_clauses(lambda clause: _phrases(clause, count))


def iso_dates(sentence: Sentence) -> Sentence:
    """Dates are written 2031-05-14."""

    def date(clause: Clause) -> Clause:
        return replace(clause, date=replace(clause.date, iso=True)) if clause.date else clause

    return sentence.map_clauses(date)


ADAPTERS: dict[str, Callable[[Sentence], Sentence]] = {
    "formal-v1": formal_v1,
    "formal-v2": formal_v2,
    "terms": terms,
    "emphatic": emphatic,
    "numerals": numerals,
    "dates": iso_dates,
}
"""The folders of `examples/adapters/` and what each does to a sentence."""


def adapt(text: Text, adapter: str | None) -> Text:
    """The meaning as the adapter has it; None is the base model. Raises KeyError for an unknown adapter."""
    if adapter is None:
        return text
    change = ADAPTERS[adapter]
    return Text(tuple(change(sentence) for sentence in text.sentences))


def concerns(text: Text, adapter: str) -> bool:
    """Whether the text is one that the adapter is about: it changes what is said."""
    return adapt(text, adapter) != text
