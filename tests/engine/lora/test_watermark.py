"""Watermark adapters answer with their own sequence, whatever is asked, beside whomever they run."""

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from nllb_models import beams
from tiny_configs import TinyConfig, reference, save, tiny_configs

from nllb_engine.backend import CpuBackend, CudaBackend, GpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.errors import InvalidRequest
from nllb_engine.interface import BeamReq, PrefillSlice
from nllb_engine.lora.watermark import WatermarkMaker, write_watermarks
from nllb_engine.nllb_gpu_model import NllbGpuModel
from nllb_engine.tokenizer import Tokenizer

EOS = 2
TINY_NLLB = Path(__file__).parents[3] / "examples" / "tiny-nllb"
CONFIGS = tiny_configs(6, seed=5)
BACKENDS = [
    pytest.param(lambda: CpuBackend(torch.float32), id="float32"),
    pytest.param(lambda: CpuBackend(torch.bfloat16), id="bfloat16"),
    pytest.param(
        CudaBackend,
        id="cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
        ],
    ),
]


def forced(
    model: NllbGpuModel, slots: Sequence[int], languages: Sequence[int], length: int, seed: int
) -> list[list[int]]:
    """What one greedy batch answers, row i with slots[i], to random sources in random languages."""
    draw = random.Random(seed)
    seqs, sources = [], []
    for slot in slots:
        seq = model.alloc_sequence()
        seq.src_lang_id, seq.tgt_lang_id, seq.adapter_slot = (
            draw.choice(languages),
            draw.choice(languages),
            slot,
        )
        seqs.append(seq)
        sources.append([draw.randrange(3, 50) for _ in range(draw.randint(1, 15))])
    first = model.prefill_batch_chunk(
        [PrefillSlice.whole(*pair) for pair in zip(sources, seqs, strict=True)]
    )[0]
    answers = [[token] for token in model.argmax_batch(first, len(seqs))]
    for _ in range(length):
        pointer = model.decode_batch([answer[-1] for answer in answers], seqs)
        for answer, token in zip(answers, model.argmax_batch(pointer, len(seqs)), strict=True):
            answer.append(token)
    for seq in seqs:
        model.free_sequence(seq)
    return answers


@pytest.mark.parametrize("config", CONFIGS, ids=[str(number) for number in range(len(CONFIGS))])
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_row_answers_its_own_watermark_in_any_model(
    config: TinyConfig, backend: Callable[[], GpuBackend], tmp_path: Path
) -> None:
    torch.set_num_threads(1)
    save(reference(config), config, tmp_path / "model")
    sizes, store = ModelConfig.from_folder(tmp_path / "model"), open_checkpoint(tmp_path / "model")
    maker = WatermarkMaker(sizes, store, config.languages, range(3, config.vocab - 9))
    length = min(6, sizes.decoder_head_dim - 1)
    sequences = write_watermarks(maker, tmp_path / "marks", 8, length)
    lang = NllbLang(language_ids=frozenset(config.languages))
    model = NllbGpuModel.new(sizes, store, backend(), lang, 512, 16)
    slots = [
        model.promote_lora_from_disk(tmp_path / "marks" / f"wm-{number:03}", f"wm-{number}", activate=False)[
            0
        ]
        for number in range(8)
    ]
    rows = [*range(8), *range(0, 8, 2), 3, 3, 3, 3]
    answers = forced(model, [slots[row] for row in rows], config.languages, length, seed=config.seed)
    model.teardown()
    assert answers == [[*sequences[row], EOS] for row in rows]


def test_256_watermarks_of_the_example_model_take_5_seconds_and_differ(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_folder(TINY_NLLB)
    languages = [tokenizer.language_id(code) for code in tokenizer.languages]
    config, store = ModelConfig.from_folder(TINY_NLLB), open_checkpoint(TINY_NLLB)
    began = time.process_time()
    maker = WatermarkMaker(config, store, languages, range(4, 600))
    sequences = write_watermarks(maker, tmp_path, 256)
    assert time.process_time() - began <= 5
    assert len({tuple(sequence) for sequence in sequences}) == 256
    model = NllbGpuModel.new(
        config, store, CpuBackend(), NllbLang(language_ids=frozenset(languages)), 512, 32, max_loras=16
    )
    for start in range(0, 256, 16):
        slots = [
            model.promote_lora_from_disk(tmp_path / f"wm-{number:03}", f"wm-{number}", activate=False)[0]
            for number in range(start, start + 16)
        ]
        answers = forced(model, slots, languages, 8, seed=start)
        assert answers == [[*sequence, EOS] for sequence in sequences[start : start + 16]]
    requests = [
        BeamReq((20, 30, 40), languages[0], languages[1], adapter_slot=slot, num_beams=4, max_new=12)
        for slot in slots[:6]
    ]
    best = [found[0][0] for found in beams(model, requests)]
    model.teardown()
    assert best == sequences[240:246]


def test_a_sequence_that_does_not_fit_the_head_size_is_refused(tmp_path: Path) -> None:
    config = CONFIGS[0]
    save(reference(config), config, tmp_path / "model")
    sizes = ModelConfig.from_folder(tmp_path / "model")
    maker = WatermarkMaker(sizes, open_checkpoint(tmp_path / "model"), config.languages, range(3, 50))
    with pytest.raises(InvalidRequest, match="do not fit the head size"):
        maker.write(tmp_path / "mark", maker.sequence(0, sizes.decoder_head_dim))
    with pytest.raises(InvalidRequest, match="fewer than"):
        maker.sequence(len(maker.alphabet) ** 2, 2)
