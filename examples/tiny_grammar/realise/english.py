"""English spelt out. Knows English morphology; words and closed classes come from the data files."""

from __future__ import annotations

from ..meaning import Clause, Noun
from .base import Realiser


def plural_form(word: str) -> str:
    """The regular plural of a noun, which is also the third person of a verb."""
    if word.endswith(("s", "x", "ch", "sh")):
        return word + "es"
    return word[:-1] + "ies" if word.endswith("y") and word[-2] not in "aeiou" else word + "s"


def past_form(word: str) -> str:
    """The regular past of a verb."""
    if word.endswith("e"):
        return word + "d"
    return word[:-1] + "ied" if word.endswith("y") and word[-2] not in "aeiou" else word + "ed"


class English(Realiser):
    """English."""

    def noun(self, noun: Noun, case: str) -> str:
        """Determiner, adjectives, noun, copied tag, owner."""
        word = self.word(noun.head)
        head = (word.other or plural_form(word.text)) if noun.plural else word.text
        determiners = self.rules["determiners"]
        first = self.count_word(noun) if noun.determiner == "count" else determiners[noun.determiner]
        adjectives = (self.word(adjective).text for adjective in noun.adjectives)
        return self.join(first, *adjectives, head, noun.tag, self.owner(noun))

    def _be(self, clause: Clause, person: str) -> dict[str, str]:
        negation = "not" if clause.negated else ""
        quality = self.word(clause.quality).text
        if clause.tense == "future":
            return {"X": "will", "G": negation, "V": "be", "C": quality}
        present = {"1sg": "am", "3sg": "is"}.get(person, "are")
        past = "was" if person in ("1sg", "3sg") else "were"
        return {"X": present if clause.tense == "present" else past, "G": negation, "C": quality}

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """Auxiliary X, negation G, main verb V, quality C."""
        person = self.agreement(clause.subject).person
        if clause.verb == "be":
            return self._be(clause, person)
        word = self.word(clause.verb)
        negation = "not" if clause.negated else ""
        if clause.tense == "future":
            return {"X": "will", "G": negation, "V": word.text}
        third = person == "3sg"
        if question or clause.negated:
            auxiliary = "did" if clause.tense == "past" else "does" if third else "do"
            return {"X": auxiliary, "G": negation, "V": word.text}
        if clause.tense == "past":
            return {"V": word.other or past_form(word.text)}
        return {"V": plural_form(word.text) if third else word.text}
