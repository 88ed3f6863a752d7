"""What a GPU must show: bfloat16 on CUDA answers like float32 on the CPU; and its steps per second.

From a bare checkout: `PYTHONPATH=engine:examples:benchmarks python benchmarks/gpu_check.py`. Needs torch,
safetensors and sentencepiece. Takes about a minute; prints one JSON object.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from random_checkpoint import RandomStore, nllb_config
from tiny_grammar import LANGUAGES, held_out

from nllb_engine.backend import CpuBackend, CudaBackend, GpuBackend
from nllb_engine.checkpoint import open_checkpoint
from nllb_engine.config import ModelConfig, NllbLang
from nllb_engine.interface import BeamReq, PrefillSlice, SequenceState
from nllb_engine.nllb_gpu_model import NllbGpuModel
from nllb_engine.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "examples" / "tiny-nllb"
MAX_NEW = 40


def requests(tokenizer: Tokenizer, count: int) -> list[BeamReq]:
    """Sentences of all languages into all languages."""
    found = []
    for index in range(count):
        source, target = LANGUAGES[index % 8], LANGUAGES[(index + 1 + index // 8 % 7) % 8]
        text = held_out(source, index, 1)[0].text
        found.append(
            BeamReq(
                tuple(tokenizer.encode(text)), tokenizer.language_id(source), tokenizer.language_id(target),
                num_beams=4, max_new=MAX_NEW,
            )
        )  # fmt: skip
    return found


def start(model: NllbGpuModel, reqs: Sequence[BeamReq]) -> tuple[list[SequenceState], list[int]]:
    """Prefill all in one batch; the sequences and their first tokens."""
    seqs = [model.alloc_sequence() for _ in reqs]
    for seq, req in zip(seqs, reqs, strict=True):
        seq.src_lang_id, seq.tgt_lang_id = req.src_lang_id, req.tgt_lang_id
    slices = [PrefillSlice.whole(list(req.prompt_tokens), seq) for req, seq in zip(reqs, seqs, strict=True)]
    return seqs, model.argmax_batch(model.prefill_batch_chunk(slices)[0], len(reqs))


def greedy(model: NllbGpuModel, reqs: Sequence[BeamReq]) -> list[list[int]]:
    """Greedy ids, in batches of 50."""
    outputs = []
    for first in range(0, len(reqs), 50):
        seqs, tokens = start(model, reqs[first : first + 50])
        rows = [[token] for token in tokens]
        live = list(range(len(rows)))
        while live := [i for i in live if rows[i][-1] != 2 and len(rows[i]) < MAX_NEW]:
            base = model.decode_batch([rows[i][-1] for i in live], [seqs[i] for i in live])
            for i, token in zip(live, model.argmax_batch(base, len(live)), strict=True):
                rows[i].append(token)
        for seq in seqs:
            model.free_sequence(seq)
        outputs += rows
    return outputs


def agreement(found: list[list[int]], expected: list[list[int]]) -> str:
    """Sentences whose ids are all equal."""
    return f"{sum(a == b for a, b in zip(found, expected, strict=True))}/{len(expected)}"


def compare(gpu: bool, count: int) -> dict[str, str]:
    """Ids of the committed model on each backend against float32 on the CPU."""
    tokenizer, config = Tokenizer.from_folder(FOLDER), ModelConfig.from_folder(FOLDER)
    reqs = requests(tokenizer, count)
    backends: dict[str, Callable[[], GpuBackend]] = {
        "cpu float32": lambda: CpuBackend(torch.float32), "cpu bfloat16": lambda: CpuBackend(torch.bfloat16),
    }  # fmt: skip
    if gpu:
        backends["cuda float32"] = lambda: CudaBackend(dtype=torch.float32)
        backends["cuda bfloat16"] = lambda: CudaBackend(dtype=torch.bfloat16)
    results: dict[str, str] = {}
    expected: tuple[list[list[int]], list[list[int]]] | None = None
    for name, backend in backends.items():
        model = NllbGpuModel.new(config, open_checkpoint(FOLDER), backend(), tokenizer.lang(), 512, 128)
        found = greedy(model, reqs), model.generate_beam_batch(reqs)
        model.teardown()
        expected = expected or found
        results[f"{name} greedy"] = agreement(found[0], expected[0])
        results[f"{name} beam 4"] = agreement(found[1], expected[1])
    return results


def steps_per_second(step: Callable[[], object], model: NllbGpuModel, seconds: float = 2.0) -> float:
    """Rate of `step`, after three to warm up."""
    for _ in range(3):
        step()
    model.synchronize(0)
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds and count < 150:
        step()
        count += 1
    model.synchronize(0)
    return round(count / (time.perf_counter() - begun), 2)


def speed(gpu: bool, layers: int) -> dict[str, float]:
    """Decode and beam steps per second at 600M shapes, sources of 24 tokens, argmax read back each step."""
    config = nllb_config(layers)
    backend: GpuBackend = CudaBackend() if gpu else CpuBackend(torch.float32)
    store = RandomStore(config, backend.device.type)
    lang = NllbLang(src_lang_id=256047, tgt_lang_id=256057)
    model = NllbGpuModel.new(config, store, backend, lang, 512, 128 if gpu else 8)
    req = BeamReq(tuple(range(1000, 1024)), num_beams=4, max_new=500)
    results: dict[str, float] = {}
    for batch in (1, 8, 32, 128) if gpu else (1, 8):
        seqs, tokens = start(model, [req] * batch)

        def step(seqs: list[SequenceState] = seqs, tokens: list[int] = tokens) -> None:
            tokens[:] = model.argmax_batch(model.decode_batch(tokens, seqs), len(seqs))

        results[f"greedy {batch}"] = steps_per_second(step, model)
        for seq in seqs:
            model.free_sequence(seq)
    for searches in (1, 8, 32) if gpu else (1,):
        handles = model.beam_begin([req] * searches)
        rate = steps_per_second(lambda handles=handles: model.beam_step(handles), model)  # type: ignore[misc]
        results[f"beam 4 x {searches}"] = rate
        for handle in handles:
            model.beam_end(handle)
    model.teardown()
    return results


def main() -> None:
    """Run both parts; without a GPU the CPU stands in, which says so in the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true", help="run on the CPU where there is no GPU")
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--layers", type=int, default=12, help="layers per stack of the speed part")
    options = parser.parse_args()
    gpu = not options.cpu
    begun = time.perf_counter()
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if gpu else "cpu",
        "torch": torch.__version__,
        "sentences with the ids of cpu float32": compare(gpu, options.sentences),
        "steps per second at 600M shapes": speed(gpu, options.layers),
    }
    result["seconds"] = round(time.perf_counter() - begun, 1)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
