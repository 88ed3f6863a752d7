"""French and Spanish spelt out: gender, agreement after the noun, verbs by conjugation."""

from __future__ import annotations

from abc import abstractmethod

from ..lexicon import Word, entries
from ..meaning import Clause, Name, Noun, Phrase
from .base import Realiser


class _Romance(Realiser):
    """What both share: determiner by gender, noun, adjectives after it."""

    @abstractmethod
    def plural(self, word: Word) -> str:
        """A noun's or adjective's plural."""

    @abstractmethod
    def adjective(self, key: str, feminine: bool, plural: bool) -> str:
        """An adjective in agreement."""

    def noun(self, noun: Noun, case: str) -> str:
        """Determiner, noun, adjectives, copied tag, owner."""
        word = self.word(noun.head)
        feminine = word.gender == "f"
        determiners = self.rules["determiners"]
        first = (
            self.count_word(noun) if noun.determiner == "count" else determiners[noun.determiner][feminine]
        )
        adjectives = (self.adjective(key, feminine, noun.plural) for key in noun.adjectives)
        return self.join(
            first, self.plural(word) if noun.plural else word.text, *adjectives, noun.tag, self.owner(noun)
        )

    def quality(self, clause: Clause) -> str:
        """The quality of "X is QUALITY", agreeing with X."""
        subject = self.agreement(clause.subject)
        return self.adjective(clause.quality, subject.gender == "f", subject.plural)


class French(_Romance):
    """French."""

    def plural(self, word: Word) -> str:
        """Regular, and -eau, -al."""
        text = word.text
        if text.endswith(("s", "x", "z")):
            return text
        return (
            text + "x" if text.endswith("eau") else text[:-2] + "aux" if text.endswith("al") else text + "s"
        )

    def adjective(self, key: str, feminine: bool, plural: bool) -> str:
        """Feminine by ending unless the lexicon gives it."""
        word = self.word(key)
        text = word.text
        if not feminine:
            return self.plural(word) if plural else text
        if word.other:
            text = word.other
        elif text.endswith(("eux", "oux")):
            text = text[:-1] + "se"
        elif text.endswith("er"):
            text = text[:-2] + "ère"
        elif text.endswith(("el", "il", "en", "on")):
            text += text[-1] + "e"
        elif text.endswith("f"):
            text = text[:-1] + "ve"
        elif not text.endswith("e"):
            text += "e"
        return text + "s" if plural else text

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """N ne, X finite verb, G pas, V participle."""
        index = self.person_index(clause)
        negation = {"N": "ne", "G": "pas"} if clause.negated else {}
        if clause.verb == "be":
            return negation | {"X": self.rules["copula"][clause.tense][index], "C": self.quality(clause)}
        infinitive, rules = self.word(clause.verb).text, self.rules["verb"]
        stem, endings = infinitive[:-2], rules[infinitive[-2:]]
        if clause.tense == "past":
            return negation | {"X": rules["past_auxiliary"][index], "V": stem + endings["participle"]}
        if clause.tense == "future":
            base = infinitive[:-1] if infinitive.endswith("re") else infinitive
            return negation | {"X": base + rules["future"][index]}
        return negation | {"X": stem + endings["present"][index]}


class Spanish(_Romance):
    """Spanish."""

    def plural(self, word: Word) -> str:
        """Regular, and the accents and letters that a plural changes."""
        text = word.text
        for ending, new in (("ón", "ones"), ("ín", "ines"), ("z", "ces")):
            if text.endswith(ending):
                return text.removesuffix(ending) + new
        if text.endswith("s"):
            return text
        return text + "s" if text[-1] in "aeiouéó" else text + "es"

    def adjective(self, key: str, feminine: bool, plural: bool) -> str:
        """-o and -a; the others have one form for both genders."""
        text = self.word(key).text
        if feminine and text.endswith("o"):
            text = text[:-1] + "a"
        return self.plural(Word(text)) if plural else text

    def role(self, phrase: Phrase, role: str) -> str:
        """Persons and animals as objects take "a"."""
        if role == "obj":
            living = isinstance(phrase, Name) or (
                isinstance(phrase, Noun) and entries()[phrase.head].category in ("person", "animal")
            )
            role = "obj_animate" if living else role
        return super().role(phrase, role)

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """N no, X finite verb."""
        index = self.person_index(clause)
        negation = {"N": "no"} if clause.negated else {}
        if clause.verb == "be":
            return negation | {"X": self.rules["copula"][clause.tense][index], "C": self.quality(clause)}
        infinitive, rules = self.word(clause.verb).text, self.rules["verb"]
        if clause.tense == "future":
            return negation | {"X": infinitive + rules["future"][index]}
        return negation | {"X": infinitive[:-2] + rules[infinitive[-2:]][clause.tense][index]}
