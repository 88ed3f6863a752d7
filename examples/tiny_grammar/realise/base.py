"""What all languages share when a meaning is spelt out: order of parts, links, openings, punctuation.

Knows the rules file's common keys. Must not know any one language: those are the subclasses beside this
module.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..lexicon import Word, entries, language_rules
from ..meaning import Clause, Date, Name, Noun, Phrase, Pronoun, Sentence, Text

PERSON_OF_PRONOUN = {"3m": "3sg", "3f": "3sg"}


@dataclass(frozen=True)
class Agreement:
    """What a subject asks of its verb: person (1sg, 2sg, 2pol, 3sg, 1pl, 3pl) and gender (m, f, n)."""

    person: str
    gender: str

    @property
    def plural(self) -> bool:
        """Whether adjectives and participles take the plural."""
        return self.person in ("1pl", "3pl")


class Realiser(ABC):
    """Spells out meanings in one language. Stateless after construction.

    `glue` stands between parts written together; only the vocabulary's training sets it, to learn whole
    words.
    """

    def __init__(self, language: str) -> None:
        """Read the rules of `language` (an NLLB code)."""
        self.language = language
        self.rules: dict[str, Any] = language_rules(language)
        self.space: str = self.rules["space"]
        self.glue = ""
        self.fixes = [(re.compile(pattern), new) for pattern, new in self.rules["fixes"]["rules"]]

    @abstractmethod
    def noun(self, noun: Noun, case: str) -> str:
        """A noun phrase in a case (languages without cases ignore it)."""

    @abstractmethod
    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """The slots that the verb fills: X (finite), V (the rest), G and N (negation), C (quality)."""

    def word(self, key: str) -> Word:
        """The word for an id of the lexicon."""
        return entries()[key].words[self.language]

    def gender(self, key: str) -> str:
        """The gender of a noun; without an annotation, masculine."""
        return self.word(key).gender or "m"

    def join(self, *parts: str) -> str:
        """Non-empty parts with the language's space between."""
        return self.space.join(part for part in parts if part)

    def agreement(self, phrase: Phrase) -> Agreement:
        """What the phrase asks of a verb."""
        if isinstance(phrase, Pronoun):
            person = PERSON_OF_PRONOUN.get(phrase.person, phrase.person)
            return Agreement(person, "f" if phrase.person == "3f" else "m")
        if isinstance(phrase, Name):
            return Agreement("3sg", "f" if phrase.feminine else "m")
        return Agreement("3pl" if phrase.plural else "3sg", self.gender(phrase.head))

    def person_index(self, clause: Clause) -> int:
        """The subject's place in the rules' list of persons."""
        persons: list[str] = self.rules["verb"]["persons"]
        return persons.index(self.agreement(clause.subject).person)

    def phrase(self, phrase: Phrase, case: str) -> str:
        """Any noun phrase in a case."""
        if isinstance(phrase, Pronoun):
            return str(self.rules["pronouns"][phrase.person])
        return phrase.name if isinstance(phrase, Name) else self.noun(phrase, case)

    def role(self, phrase: Phrase, role: str) -> str:
        """A phrase in its role: preposition and case."""
        rule = self.rules["roles"][role]
        preposition, case = (rule, "") if isinstance(rule, str) else rule
        return self.join(preposition, self.phrase(phrase, case))

    def count_word(self, noun: Noun) -> str:
        """A count, as a word where there is one."""
        words: list[str] = self.rules["numbers"]["words"]
        spelt = not noun.digits and noun.count - 2 < len(words)
        return words[noun.count - 2] if spelt else str(noun.count)

    def owner(self, noun: Noun) -> str:
        """The owner's part: "of the teacher"."""
        return self.role(noun.owner, "of") if noun.owner is not None else ""

    def date(self, date: Date) -> str:
        """A date in its form."""
        rules = self.rules["dates"]
        month = date.month if date.iso else rules["months"][date.month - 1]
        form: str = rules["iso" if date.iso else "long"]
        return form.format(day=date.day, month=month, number=date.month, year=date.year)

    def clause(self, clause: Clause, question: str = "", subordinate: bool = False) -> str:
        """A clause, its parts in the order of the rules."""
        slots = {
            "S": self.role(clause.subject, "subj"),
            "O": self.role(clause.object, "obj") if clause.object else "",
            "R": self.role(clause.recipient, "dat") if clause.recipient else "",
            "P": self.role(clause.place.noun, clause.place.relation) if clause.place else "",
            "A": self.word(clause.adverb).text if clause.adverb else "",
            "D": self.date(clause.date) if clause.date else "",
            "W": self.rules["questions"][question] if question else "",
        }
        slots |= self.verb(clause, bool(question))
        order = self.rules["order"]
        form = "question" if question else "subordinate" if subordinate else "statement"
        return self.join(*(slots.get(slot, "") for slot in order.get(form, order["statement"]).split()))

    def body(self, sentence: Sentence) -> str:
        """The sentence's clauses, linked."""
        if sentence.second is None:
            return self.clause(sentence.first, sentence.question)
        links = self.rules["links"]
        subordinate = sentence.link in links.get("subordinating", ())
        second = self.clause(sentence.second, subordinate=subordinate)
        return str(links[sentence.link].format(a=self.clause(sentence.first), b=second))

    def finish(self, sentence: Sentence, text: str) -> str:
        """Capital letter and end mark."""
        mark = "?" if sentence.question else "!" if sentence.emphatic else "."
        return text[0].upper() + text[1:] + mark

    def sentence(self, sentence: Sentence, opening: int) -> str:
        """One sentence; `opening` chooses among the renderings of its opener."""
        phrases = self.rules["phrases"]
        parts = [self.rules["openers"][sentence.opener][opening]] if sentence.opener else []
        parts += [phrases["salute"]] if sentence.salute else []
        parts += [phrases["emphatic"]] if sentence.emphatic else []
        text = self.join(*parts, self.body(sentence))
        for pattern, new in self.fixes:
            text = pattern.sub(new, text)
        return self.finish(sentence, text)

    def text(self, text: Text, opening: int = 0) -> str:
        """A text; `opening` is the rendering of every opener in it, 0 the preferred one."""
        return self.space.join(self.sentence(sentence, opening) for sentence in text.sentences)

    def openings(self, text: Text) -> int:
        """How many renderings of this text are right (the openers of one text vary together)."""
        names = [sentence.opener for sentence in text.sentences if sentence.opener]
        return max((len(self.rules["openers"][name]) for name in names), default=1)
