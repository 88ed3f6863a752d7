"""The committed weights: transformers and peft load them unchanged and say what the grammar expects.
Never trains.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from tiny_grammar import (
    ADAPTERS,
    LANGUAGES,
    Sentence,
    ambiguous,
    expected,
    expected_all,
    hard,
    held_out,
    held_out_for,
    held_out_long,
    probes,
)
from transformers import AutoTokenizer, M2M100ForConditionalGeneration, NllbTokenizer
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES

EXAMPLES = Path(__file__).parents[2] / "examples"
FOLDER = EXAMPLES / "tiny-nllb"
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@cache
def _tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(FOLDER)


@cache
def _model(adapter: str | None) -> Any:
    torch.set_num_threads(1)
    model: Any = M2M100ForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    return (
        model
        if adapter is None
        else PeftModel.from_pretrained(model, str(EXAMPLES / "adapters" / adapter)).eval()
    )


def _translate(
    sentences: list[Sentence], target: str, adapter: str | None = None, beams: int = 1, answers: int = 1
) -> list[list[str]]:
    """The `answers` best translations of sentences of one language."""
    tokenizer = _tokenizer()
    tokenizer.src_lang = sentences[0].language
    batch = tokenizer([sentence.text for sentence in sentences], return_tensors="pt", padding=True)
    with torch.inference_mode():
        ids = _model(adapter).generate(
            **batch,
            forced_bos_token_id=tokenizer.convert_tokens_to_ids(target),
            num_beams=beams,
            num_return_sequences=answers,
        )
    texts = tokenizer.batch_decode(ids, skip_special_tokens=True)
    return [texts[i : i + answers] for i in range(0, len(texts), answers)]


def _exact(sentences: list[Sentence], target: str, adapter: str | None = None) -> float:
    got = _translate(sentences, target, adapter)
    wanted = [expected(sentence, target, adapter) for sentence in sentences]
    return sum(a == b for (a,), b in zip(got, wanted, strict=True)) / len(wanted)


def test_the_folder_has_the_layout_of_nllb() -> None:
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    assert config["model_type"] == "m2m_100"
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        names = set(weights.keys())
        assert {name for name in names if ".layers." not in name and "layer_norm" not in name} == {
            "model.shared.weight"
        }
        assert {weights.get_tensor(name).dtype for name in names} == {torch.bfloat16}
        pieces = config["vocab_size"] - 1 - len(FAIRSEQ_LANGUAGE_CODES) - 1
        assert list(weights.get_slice("model.shared.weight").get_shape()) == [config["vocab_size"], 256]
    tokenizer = _tokenizer()
    assert isinstance(tokenizer, NllbTokenizer)
    codes = tokenizer.convert_tokens_to_ids(list(FAIRSEQ_LANGUAGE_CODES))
    assert codes == list(range(pieces + 1, pieces + 1 + len(FAIRSEQ_LANGUAGE_CODES)))
    assert tokenizer.convert_tokens_to_ids("<mask>") == codes[-1] + 1 == config["vocab_size"] - 1


def test_model_and_adapters_stay_within_twelve_megabytes() -> None:
    files = [FOLDER / "model.safetensors", *(EXAMPLES / "adapters").glob("*/adapter_model.safetensors")]
    assert len(files) == 1 + len(ADAPTERS)
    assert sum(path.stat().st_size for path in files) <= 12_000_000


@pytest.mark.parametrize("place", range(len(LANGUAGES)))
def test_held_out_texts_are_translated_exactly_from_and_into_every_language(place: int) -> None:
    source = LANGUAGES[place]
    for step in (1, 3):
        target = LANGUAGES[(place + step) % len(LANGUAGES)]
        assert _exact(held_out(source, f"ci {target}", 20), target) >= 0.95, target


def test_long_held_out_texts_are_translated_exactly() -> None:
    shares = [
        _exact(held_out_long("eng_Latn", f"ci {target}", 6), target) for target in ("jpn_Jpan", "rus_Cyrl")
    ]
    assert sum(shares) / len(shares) >= 0.8


def test_beam_search_finds_the_best_opening_that_greedy_search_misses() -> None:
    sentences = hard("eng_Latn", "ci", 20)
    wanted = [expected(sentence, "deu_Latn") for sentence in sentences]
    greedy = sum(a == b for (a,), b in zip(_translate(sentences, "deu_Latn"), wanted, strict=True))
    beam = sum(a == b for (a,), b in zip(_translate(sentences, "deu_Latn", beams=4), wanted, strict=True))
    assert beam >= 19
    assert greedy <= 1


def test_n_best_finds_both_translations_of_ambiguous_texts() -> None:
    sentences = ambiguous("kor_Hang", "ci", 15)
    for sentence, texts in zip(sentences, _translate(sentences, "spa_Latn", beams=4, answers=4), strict=True):
        assert set(expected_all(sentence, "spa_Latn")) <= set(texts)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_an_adapter_changes_what_it_is_about_and_leaves_the_rest(adapter: str) -> None:
    changed, kept = [], []
    for source, target in (("eng_Latn", "deu_Latn"), ("heb_Hebr", "jpn_Jpan")):
        changed.append(_exact(held_out_for(adapter, source, "ci", 15), target, adapter))
        others = held_out_for(adapter, source, "ci", 15, about=False)
        base = _translate(others, target)
        kept += [a == b for a, b in zip(_translate(others, target, adapter), base, strict=True)]
    assert sum(changed) / len(changed) >= 0.9
    assert sum(kept) / len(kept) >= 0.95


def test_every_two_adapters_answer_differently_on_the_probes() -> None:
    sentences = probes("eng_Latn", "ci", 5)
    answers = {name: _translate(sentences, "fra_Latn", name) for name in (None, *ADAPTERS)}
    for first, texts in answers.items():
        for second, others in answers.items():
            if first != second:
                assert sum(a != b for a, b in zip(texts, others, strict=True)) >= 4, (first, second)
