"""The committed adapters on the committed model: logits and ids equal those of peft, mixed in one batch."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from lora_adapters import our_logits, peft_on, their_logits
from nllb_models import beams, their_beams
from tiny_grammar import LANGUAGES, held_out
from transformers import M2M100ForConditionalGeneration

from nllb_engine.backend import CpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig
from nllb_engine.interface import BeamReq
from nllb_engine.nllb_gpu_model import NllbGpuModel
from nllb_engine.tokenizer import Tokenizer

EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDER = EXAMPLES / "tiny-nllb"
ADAPTERS = sorted(path.name for path in (EXAMPLES / "adapters").iterdir() if path.is_dir())
TOLERANCE = 1e-4
SENTENCES = 12


@dataclass(frozen=True)
class Loaded:
    """The committed model, loaded by both, with every adapter in a slot."""

    ours: NllbGpuModel
    theirs: M2M100ForConditionalGeneration
    slots: dict[str, int]
    source: int
    target: int
    texts: list[list[int]]


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_folder(FOLDER)
    model = NllbGpuModel.new(
        ModelConfig.from_folder(FOLDER), open_checkpoint(FOLDER), CpuBackend(), tokenizer.lang(), 512, 64
    )
    slots = {
        name: model.promote_lora_from_disk(EXAMPLES / "adapters" / name, name, activate=False)[0]
        for name in ADAPTERS
    }
    source, target = LANGUAGES[0], LANGUAGES[1]
    texts = [tokenizer.encode(one.text) for one in held_out(source, 7, SENTENCES)]
    theirs = M2M100ForConditionalGeneration.from_pretrained(FOLDER, dtype=torch.float32).eval()
    ids = tokenizer.language_id(source), tokenizer.language_id(target)
    yield Loaded(model, theirs, slots, *ids, texts)
    model.teardown()


def test_there_are_adapters() -> None:
    assert len(ADAPTERS) >= 2


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_example_adapter_computes_what_peft_computes(loaded: Loaded, name: str) -> None:
    """Every text in one batch where each second row uses this adapter and the others use all the others."""
    others = [slot for other, slot in loaded.slots.items() if other != name] + [-1]
    requests = [
        BeamReq(tuple(text), loaded.source, loaded.target, slot, num_beams=beam, max_new=40)
        for number, text in enumerate(loaded.texts)
        for slot, beam in ((loaded.slots[name], 2 + 2 * (number % 2)), (others[number % len(others)], 1))
    ]
    found = [hypotheses for start in range(0, len(requests), 8)
             for hypotheses in beams(loaded.ours, requests[start : start + 8])]  # fmt: skip
    with peft_on(loaded.theirs, EXAMPLES / "adapters" / name) as adapted:
        for request, ours, text in zip(requests[::2], found[::2], loaded.texts, strict=True):
            theirs = their_beams(adapted, text, request)
            assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
            forced = theirs[0][0]
            (mine,) = our_logits(
                loaded.ours, [text], loaded.source, loaded.target, [forced], [request.adapter_slot]
            )
            other = their_logits(adapted, text, loaded.source, loaded.target, forced)
            assert float((mine - other).abs().max()) < TOLERANCE
