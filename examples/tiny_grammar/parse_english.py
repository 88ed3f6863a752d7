"""Reads English of this grammar back into its meaning, so that demos can write sentences by hand.

Knows English order and forms as `realise/english.py` spells them. What it reads is spelt out again and
must be equal,
so a text that the grammar does not have is refused, never misread.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from itertools import product

from .lexicon import entries, language_rules, names
from .meaning import Clause, Date, Name, Noun, Phrase, Place, Pronoun, Sentence, Text
from .realise import realiser
from .realise.english import past_form, plural_form

_LANGUAGE = "eng_Latn"
_BE = {"am": "present", "is": "present", "are": "present", "was": "past", "were": "past"}
_DO = {"do": "present", "does": "present", "did": "past"}


@cache
def _words(kind: str) -> dict[str, str]:
    """Dictionary form → id, of adverbs or adjectives."""
    return {e.words[_LANGUAGE].text: e.id for e in entries().values() if e.kind == kind}


@cache
def _nouns() -> dict[str, str]:
    """Singular or plural form → id."""
    found: dict[str, str] = {}
    for entry in entries().values():
        if entry.kind == "nouns":
            word = entry.words[_LANGUAGE]
            found |= {word.text: entry.id, word.other or plural_form(word.text): entry.id}
    return found


@cache
def _verbs() -> dict[str, tuple[str, str]]:
    """Any form → id and tense."""
    found: dict[str, tuple[str, str]] = {}
    for entry in entries().values():
        if entry.kind == "verbs":
            word = entry.words[_LANGUAGE]
            found |= dict.fromkeys((word.text, plural_form(word.text)), (entry.id, "present"))
            found[word.other or past_form(word.text)] = (entry.id, "past")
    return found


@cache
def _surnames() -> frozenset[str]:
    parts = names()
    return frozenset(
        map("".join, product(*(parts[f"surname_{part}"] for part in ("first", "middle", "last"))))
    )


class _Reader:
    """Reads one clause's tokens from left to right. Raises ValueError at a token that does not fit."""

    def __init__(self, text: str) -> None:
        self._tokens = [*text.replace("you, sir,", "you,sir,").split(), ""]
        self._place = 0
        self._rules = language_rules(_LANGUAGE)

    def _next(self) -> str:
        return self._tokens[self._place]

    def _take(self, *wanted: str) -> str:
        """The next token if it is one of the wanted, else ""."""
        token = self._next()
        if token in wanted:
            self._place += 1
            return token
        return ""

    def _look_up(self, table: dict[str, str], what: str) -> str:
        if self._next() not in table:
            raise ValueError(f"{self._next()!r} is no {what} of the tiny grammar")
        self._place += 1
        return table[self._tokens[self._place - 1]]

    def _noun(self) -> Noun:
        determiners = {text: key for key, text in self._rules["determiners"].items()} | {"an": "a"}
        token, count, digits = self._next(), 0, False
        if token.isdigit() or token in self._rules["numbers"]["words"]:
            digits = token.isdigit()
            count = int(token) if digits else self._rules["numbers"]["words"].index(token) + 2
            self._place += 1
        determiner = "count" if count else self._look_up(determiners, "determiner")
        adjectives = []
        while self._next() in _words("adjectives"):
            adjectives.append(self._look_up(_words("adjectives"), "adjective"))
        noun = Noun(self._look_up(_nouns(), "noun"), determiner, tuple(adjectives), count, digits)
        if self._next() in _surnames() or re.fullmatch(r"[A-Z]{2}-\d+", self._next()):
            noun = replace(noun, tag=self._next())
            self._place += 1
        return replace(noun, owner=self._noun()) if self._take("of") else noun

    def _phrase(self) -> Phrase:
        pronouns = {text.replace(" ", ""): key for key, text in self._rules["pronouns"].items()}
        for feminine, key in ((False, "masculine"), (True, "feminine")):
            if self._next() in names()[key]:
                return Name(self._take(self._next()), feminine)
        if self._next() in pronouns:
            return Pronoun(self._look_up(pronouns, "pronoun"))
        return self._noun()

    def _date(self) -> Date:
        token = self._take(self._next())
        if iso := re.fullmatch(r"(\d{4})-(\d\d)-(\d\d)", token):
            return Date(int(iso[3]), int(iso[2]), int(iso[1]), iso=True)
        months = {name: str(place + 1) for place, name in enumerate(self._rules["dates"]["months"])}
        month, year = int(self._look_up(months, "month")), self._take(self._next())
        if not token.isdigit() or not year.isdigit():
            raise ValueError(f"{token!r} and {year!r} are no day and year")
        return Date(int(token), month, int(year))

    def _predicate(self, subject: Phrase | None) -> Clause:
        """Auxiliary, subject if it is still to come (a question), negation, verb or quality."""
        auxiliary = self._take("will", *_BE, *_DO)
        subject = subject or self._phrase()
        negated = bool(self._take("not"))
        tense = "future" if auxiliary == "will" else (_BE | _DO).get(auxiliary, "")
        if auxiliary in _BE or (auxiliary == "will" and self._take("be")):
            quality = self._look_up(_words("adjectives"), "adjective")
            return Clause("be", subject, tense, negated, quality=quality)
        verb, own_tense = _verbs().get(self._next(), ("", ""))
        if not verb:
            raise ValueError(f"{self._next()!r} is no verb of the tiny grammar")
        self._place += 1
        return Clause(verb, subject, tense or own_tense, negated)

    def clause(self, question: bool) -> Clause:
        """The whole clause."""
        clause = self._predicate(None if question else self._phrase())
        category = entries()[clause.verb].category if clause.verb != "be" else ""
        if category in ("trans", "give"):
            clause = replace(clause, object=self._phrase())
        if category == "give" and self._take("to"):
            clause = replace(clause, recipient=self._phrase())
        if self._next() in _words("adverbs"):
            clause = replace(clause, adverb=self._look_up(_words("adverbs"), "adverb"))
        if relation := self._take("in", "near", "behind", "to"):
            clause = replace(clause, place=Place(relation, self._noun()))
        if self._take("on"):
            clause = replace(clause, date=self._date())
        if self._next():
            raise ValueError(f"{self._next()!r} does not fit after the clause")
        return clause


def _after(text: str, start: str) -> str | None:
    """The rest of the text after a start, or None."""
    return text[len(start) :].lstrip() if text.lower().startswith(start.lower() + " ") else None


def _body(text: str, sentence: Sentence) -> Sentence:
    if sentence.question:
        return replace(sentence, first=_Reader(text).clause(question=True))
    for word, link in ((", but ", "but"), (" and ", "and"), (" because ", "because"), (" when ", "when")):
        if word in text:
            first, second = text.split(word, 1)
            linked = (_Reader(part).clause(question=False) for part in (first, second))
            return replace(sentence, first=next(linked), link=link, second=next(linked))
    return replace(sentence, first=_Reader(text).clause(question=False))


def _sentence(text: str) -> Sentence:
    rules, body, mark = language_rules(_LANGUAGE), text[:-1], text[-1:]
    sentence = Sentence(Clause("be", Pronoun("1sg")), emphatic=mark == "!")
    for name, openings in rules["openers"].items():
        for opening in openings:
            if (rest := _after(body, opening)) is not None:
                body, sentence = rest, replace(sentence, opener=name)
    if (rest := _after(body, rules["phrases"]["salute"])) is not None:
        body, sentence = rest, replace(sentence, salute=True)
    if sentence.emphatic:
        body = _after(body, rules["phrases"]["emphatic"]) or body
    if body.split(" ")[0] not in ("I", *names()["masculine"], *names()["feminine"]):
        body = body[:1].lower() + body[1:]
    if mark == "?":
        word = next((w for w in ("where", "when", "why") if body.startswith(w + " ")), "")
        body, sentence = body.removeprefix(word).lstrip(), replace(sentence, question=word or "yesno")
    return _body(body, sentence)


def parse(text: str) -> Text:
    """The meaning of an English text of the grammar. Raises ValueError that names the first thing it
    cannot read.
    """
    meaning = Text(tuple(_sentence(part) for part in re.split(r"(?<=[.!?]) ", text)))
    speaker = realiser(_LANGUAGE)
    spelt = [speaker.text(meaning, opening) for opening in range(speaker.openings(meaning))]
    if text not in spelt:
        raise ValueError(f"the tiny grammar would say {spelt[0]!r}, not {text!r}")
    return meaning
