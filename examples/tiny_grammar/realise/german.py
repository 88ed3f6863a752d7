"""German spelt out: three genders, three cases, verb-second and verb-final order."""

from __future__ import annotations

import re

from ..meaning import Clause, Noun
from .base import Realiser


def _stem(infinitive: str) -> str:
    return infinitive[:-1] if infinitive.endswith(("ern", "eln")) else infinitive[:-2]


def _needs_e(stem: str) -> bool:
    return bool(re.search(r"(t|d|[^aeiouäöülrhmn][mn])$", stem)) and not stem.endswith(("ern", "eln"))


class German(Realiser):
    """German."""

    def _determiner(self, noun: Noun, case: str, gender: str) -> tuple[str, str]:
        if noun.determiner == "count":
            return self.count_word(noun), "strong"
        stem, declension = self.rules["determiners"][noun.determiner]
        endings = self.rules["endings"]
        if stem == "der":
            return endings["der"][case][gender], declension
        table = endings["ein"] if declension == "mixed" else endings["dies"]
        return stem + table[case][gender], declension

    def noun(self, noun: Noun, case: str) -> str:
        """Determiner, declined adjectives, noun, copied tag, owner."""
        word = self.word(noun.head)
        gender = "p" if noun.plural else word.gender
        determiner, declension = self._determiner(noun, case, gender)
        ending = self.rules["endings"][declension][case][gender]
        adjectives = (self._inflect(self.word(key).text, ending) for key in noun.adjectives)
        head = word.other if noun.plural else word.text
        if noun.plural and case == "dat" and not head.endswith(("n", "s")):
            head += "n"
        return self.join(determiner, *adjectives, head, noun.tag, self.owner(noun))

    def _inflect(self, adjective: str, ending: str) -> str:
        if adjective.endswith("el"):
            adjective = adjective[:-2] + "l"
        return adjective + ending.removeprefix("e") if adjective.endswith("e") else adjective + ending

    def _participle(self, infinitive: str) -> str:
        stem = _stem(infinitive)
        ending = "et" if _needs_e(stem) else "t"
        prefixes = tuple(self.rules["verb"]["unstressed_prefixes"])
        bare = infinitive.endswith("ieren") or (infinitive.startswith(prefixes) and len(stem) > 5)
        return ("" if bare else "ge") + stem + ending

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """X finite verb, G nicht, V infinitive or participle at the end."""
        index = self.person_index(clause)
        negation = {"G": "nicht"} if clause.negated else {}
        rules = self.rules["verb"]
        if clause.verb == "be":
            negation["C"] = self.word(clause.quality).text
            if clause.tense == "future":
                return negation | {"X": rules["will"][index], "V": "sein"}
            return negation | {"X": self.rules["copula"][clause.tense][index]}
        infinitive = self.word(clause.verb).text
        if clause.tense == "future":
            return negation | {"X": rules["will"][index], "V": infinitive}
        if clause.tense == "past":
            return negation | {"X": rules["have"][index], "V": self._participle(infinitive)}
        stem, ending = _stem(infinitive), rules["present"][index]
        if ending == "en":
            return negation | {"X": infinitive}
        if ending == "st" and stem.endswith(("s", "z", "ß", "x")):
            ending = "t"
        return negation | {"X": stem + ("e" if _needs_e(stem) and ending != "e" else "") + ending}
