# ruff: noqa: RUF001 - the letters of the language itself
"""Russian spelt out: three genders, five cases, animate accusatives, counts that govern the genitive."""

from __future__ import annotations

from typing import Any

from ..lexicon import entries
from ..meaning import Clause, Noun
from .base import Realiser

_SINGULAR = ("nom", "gen", "dat", "acc", "prep")
_PLURAL = ("nom", "gen", "dat", "prep")
_HISSING = "жшчщ"


class Russian(Realiser):
    """Russian, with regular declensions (no fleeting vowels)."""

    def gender(self, key: str) -> str:
        """Annotated, or by the ending."""
        word = self.word(key)
        return word.gender or {"а": "f", "я": "f", "о": "n", "е": "n"}.get(word.text[-1], "m")

    def _paradigm(self, key: str) -> dict[str, Any]:
        text, tables = self.word(key).text, self.rules["declension"]
        name = f"ь {self.gender(key)}" if text.endswith("ь") else "ие" if text.endswith("ие") else text[-1]
        return dict(tables.get(name, tables["consonant"]))

    def _head(self, key: str, plural: bool, case: str) -> str:
        paradigm, text = self._paradigm(key), self.word(key).text
        endings, cases = (paradigm["pl"], _PLURAL) if plural else (paradigm["sg"], _SINGULAR)
        stem = text[: len(text) - paradigm["cut"]]
        return str(stem + endings[cases.index(case)])

    def _adjective(self, key: str, gender: str, case: str) -> str:
        text = self.word(key).text
        stem, stressed = text[:-2], text.endswith("ой")
        ending = self.rules["adjective"][case][gender]
        if case == "nom" and gender == "m":
            return text
        if stem[-1] in _HISSING and not stressed and ending[0] == "о":
            ending = "е" + ending[1:]
        return str(stem + ending)

    def _case(self, case: str, gender: str, animate: bool, plural: bool) -> str:
        """The case whose forms an accusative takes."""
        if case != "acc" or (gender == "f" and not plural):
            return case
        return "gen" if animate and (plural or gender == "m") else "nom"

    def _governed(self, noun: Noun, case: str) -> tuple[str, bool, str, str]:
        """Count or quantity word, then number and case of the noun, and gender or p for adjectives."""
        rules, gender = self.rules, self.gender(noun.head)
        if noun.determiner == "count":
            word = self.count_word(noun)
            if word == rules["numbers"]["words"][0] and gender == "f":
                word = rules["numbers"]["two_feminine"]
            few = noun.count % 10 in (2, 3, 4) and noun.count not in (12, 13, 14)
            return word, not few, "gen", "p"
        return rules["determiners"][noun.determiner], True, "gen", "p"

    def noun(self, noun: Noun, case: str) -> str:
        """Determiner, adjectives, noun, copied tag, owner."""
        gender = self.gender(noun.head)
        if noun.determiner in ("count", "many", "several", "few"):
            first, plural, case, form = self._governed(noun, case)
        else:
            plural, form = noun.plural, "p" if noun.plural else gender
            animate = entries()[noun.head].category in ("person", "animal")
            case = self._case(case, gender, animate, plural)
            table = self.rules["determiners"][noun.determiner]
            first = table and table[case][form]
        adjectives = (self._adjective(key, form, case) for key in noun.adjectives)
        return self.join(first, *adjectives, self._head(noun.head, plural, case), noun.tag, self.owner(noun))

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """G не, X finite verb or auxiliary, V infinitive, C quality."""
        subject, index = self.agreement(clause.subject), self.person_index(clause)
        rules = self.rules["verb"]
        form = "p" if subject.plural or subject.person == "2pol" else subject.gender
        slots = {"G": "не"} if clause.negated else {}
        if clause.verb == "be":
            slots["C"] = self._adjective(clause.quality, form, "nom")
            finite = {"present": "", "past": rules["be_past"][form], "future": rules["be_future"][index]}
            return slots | {"X": finite[clause.tense]}
        infinitive = self.word(clause.verb).text
        if clause.tense == "future":
            return slots | {"X": rules["be_future"][index], "V": infinitive}
        stem = infinitive.removesuffix("ть")
        if clause.tense == "past":
            return slots | {"X": stem + rules["past"][form]}
        if stem.endswith("и"):
            return slots | {"X": stem[:-1] + rules["second"][index]}
        if stem.endswith(("ова", "ева")) and len(stem) > 6:
            stem = stem[:-3] + "у"
        return slots | {"X": stem + rules["first"][index]}
