"""One realiser per language, each spelling out a meaning. Must not know how meanings are made."""

from __future__ import annotations

from functools import cache

from .base import Realiser
from .east_asian import Japanese, Korean
from .english import English
from .german import German
from .hebrew import Hebrew
from .romance import French, Spanish
from .russian import Russian

REALISERS: dict[str, type[Realiser]] = {
    "eng_Latn": English,
    "fra_Latn": French,
    "deu_Latn": German,
    "spa_Latn": Spanish,
    "rus_Cyrl": Russian,
    "heb_Hebr": Hebrew,
    "jpn_Jpan": Japanese,
    "kor_Hang": Korean,
}


@cache
def realiser(language: str) -> Realiser:
    """The realiser of a language, by NLLB code. Raises KeyError for a language the grammar lacks."""
    return REALISERS[language](language)
