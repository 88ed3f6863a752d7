"""Every sentence that README, manifests and help offer a newcomer is one that the tiny model knows."""

import re
from pathlib import Path

from tiny_grammar import expected

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "examples").glob("*.yaml"),
    *(ROOT / "operator/nllb_operator/cli").glob("*.py"),
]
QUOTED = re.compile(r'translate [^"\n]*--from eng_Latn[^"\n]*"([^"]+)"')


def test_every_quoted_sentence_is_of_the_grammar() -> None:
    found = [text for page in PAGES for text in QUOTED.findall(page.read_text(encoding="utf-8"))]
    assert len(found) >= 4
    for sentence in found:
        assert expected(sentence, "deu_Latn"), sentence
