"""Hebrew spelt out: gender and number everywhere, a glued article that adjectives repeat, a marked
definite object.
"""

from __future__ import annotations

from ..meaning import Clause, Name, Noun, Phrase
from .base import Realiser


class Hebrew(Realiser):
    """Hebrew; all tenses on the participle, with the verb "to be" for past and future."""

    def gender(self, key: str) -> str:
        """Annotated, or by the ending."""
        word = self.word(key)
        return word.gender or ("f" if word.text.endswith(("ה", "ת")) else "m")

    def _inflect(self, text: str, feminine: bool, plural: bool, adjective: bool) -> str:
        rules = self.rules["endings"]
        if not feminine and not plural:
            return text
        stem = text.removesuffix("ה")
        stem = stem[:-1] + rules["final_letters"].get(stem[-1], stem[-1])
        if plural:
            return str(stem + rules["feminine_plural" if feminine else "masculine_plural"])
        if text.endswith("ה"):
            return text
        return str(stem + rules["feminine_adjective" if adjective else "feminine"])

    def _plural(self, key: str) -> str:
        word = self.word(key)
        if word.other:
            return word.other
        text = word.text
        feminine = self.gender(key) == "f"
        return self._inflect(text[:-1] if feminine and text[-1] in "הת" else text, feminine, True, False)

    def _definite(self, phrase: Phrase) -> bool:
        return isinstance(phrase, Name) or (
            isinstance(phrase, Noun) and phrase.determiner in self.rules["determiners"]["definite"]
        )

    def noun(self, noun: Noun, case: str) -> str:
        """Quantity, noun, adjectives (with the article when definite), "this" or owner's pronoun, tag,
        owner.
        """
        rules = self.rules["determiners"]
        feminine = self.gender(noun.head) == "f"
        article = rules["article"] if self._definite(noun) else ""
        head = self._plural(noun.head) if noun.plural else self.word(noun.head).text
        adjectives = (
            article
            + (article and self.glue)
            + self._inflect(self.word(key).text, feminine, noun.plural, True)
            for key in noun.adjectives
        )
        before = rules["before"].get(noun.determiner, "")
        if noun.determiner == "count":
            words = self.rules["numbers"]["feminine" if feminine else "words"]
            spelt = not noun.digits and noun.count - 2 < len(words)
            before = words[noun.count - 2] if spelt else str(noun.count)
        after = rules["after"].get(noun.determiner, ("", ""))[feminine]
        return self.join(
            before, article + (article and self.glue) + head, *adjectives, after, noun.tag, self.owner(noun)
        )

    def role(self, phrase: Phrase, role: str) -> str:
        """Prepositions of one letter are glued; the article stays, so that definiteness is always seen."""
        rules = self.rules["roles"]
        if role == "obj" and self._definite(phrase):
            return self.join(rules["definite_object"], self.phrase(phrase, ""))
        if role not in rules["glued"]:
            return super().role(phrase, role)
        text = self.phrase(phrase, "")
        hyphen = "-" if text[0].isascii() else ""
        return str(rules[role]) + hyphen + self.glue + text

    def verb(self, clause: Clause, question: bool) -> dict[str, str]:
        """G לא, X "to be" in past and future, V participle, C quality."""
        subject, rules = self.agreement(clause.subject), self.rules["verb"]
        feminine = subject.gender == "f"
        finite = ""
        if clause.tense != "present":
            finite = rules[clause.tense][self.person_index(clause)]
            if feminine and subject.person == "3sg":
                finite = rules[f"{clause.tense}_feminine"]
        slots = {"X": finite} | ({"G": rules["negation"]} if clause.negated else {})
        if clause.verb == "be":
            return slots | {
                "C": self._inflect(self.word(clause.quality).text, feminine, subject.plural, True)
            }
        return slots | {"V": self._inflect(self.word(clause.verb).text, feminine, subject.plural, False)}
