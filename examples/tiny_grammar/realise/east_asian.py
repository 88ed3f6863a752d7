"""Japanese and Korean spelt out: verb last, particles, counters, politeness on the verb."""

from __future__ import annotations

from ..lexicon import entries
from ..meaning import Clause, Noun, Phrase, Pronoun, Sentence
from .base import Realiser


class _EastAsian(Realiser):
    """What both share: everything stands before its noun, particles follow."""

    def noun(self, noun: Noun, case: str) -> str:
        """Owner, determiner or count, adjectives, noun, copied tag."""
        if noun.determiner == "count":
            counter = self.rules["numbers"]["counters"][entries()[noun.head].category]
            first = self.join(self.count_word(noun), counter)
        else:
            first = self.rules["determiners"][noun.determiner]
        adjectives = (self.word(key).text for key in noun.adjectives)
        return self.join(self.owner(noun), first, *adjectives, self.word(noun.head).text, noun.tag)


class Japanese(_EastAsian):
    """Japanese, without spaces."""

    def role(self, phrase: Phrase, role: str) -> str:
        """The phrase and its particle."""
        return self.phrase(phrase, "") + self.glue + str(self.rules["roles"][role])

    def finish(self, sentence: Sentence, text: str) -> str:
        """Questions end in か, so only emphasis needs its own mark."""
        return text + self.glue + ("!" if sentence.emphatic else "。")

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """V the polite verb, C the quality with its ending, L the word that marks the future, Q か."""
        tense = "past" if clause.tense == "past" else "present"
        slots = {"L": self.rules["verb"]["future"]} if clause.tense == "future" else {}
        slots |= {"Q": self.rules["questions"]["particle"]}
        if clause.verb != "be":
            return slots | {
                "V": self.word(clause.verb).text + self.glue + self.rules["verb"][tense][clause.negated]
            }
        quality = self.word(clause.quality).text
        kind = "i" if quality.endswith("い") else "na"
        return slots | {"C": quality[:-1] + self.glue + self.rules["copula"][kind][tense][clause.negated]}


class Korean(_EastAsian):
    """Korean, with spaces; the polite address shows on the verb too."""

    def role(self, phrase: Phrase, role: str) -> str:
        """The phrase and the particle that fits its last sound (Latin letters and digits count as vowels)."""
        text = self.phrase(phrase, "")
        offset = ord(text[-1]) - 0xAC00
        final = offset % 28 if 0 <= offset < 11172 else 0
        vowel = final == 0 or (role == "to" and final == 8)
        return text + self.glue + str(self.rules["roles"][role][vowel])

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """V the verb, C the quality with its ending."""
        polite = isinstance(clause.subject, Pronoun) and clause.subject.person == "2pol"
        manner = "honorific" if polite else "plain"
        text = self.word(clause.verb if clause.verb != "be" else clause.quality).text
        if text.endswith("의"):
            text, table = text[:-1], self.rules["copula"][manner]
        else:
            text, table = (text[:-1] if clause.verb == "be" else text), self.rules["verb"][manner]
        ending = str(table[clause.tense][clause.negated])
        return {"V": text + self.glue + (ending.removesuffix("다") + "까" if question else ending)}
