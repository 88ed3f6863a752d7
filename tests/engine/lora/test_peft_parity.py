"""Our adapters against peft's on transformers: the same logits in float32, the same greedy and beam ids."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_adapters import (
    EOS,
    KINDS,
    SMALL,
    our_logits,
    peft_on,
    random_adapter,
    small_model,
    tensors_of,
    their_logits,
)
from nllb_models import Pair, beams, greedy, their_beams, their_greedy
from safetensors.torch import save_file
from tiny_configs import random_sources, reference, save

from nllb_engine.interface import BeamReq, PrefillSlice

SRC, TGT = SMALL.languages[0], SMALL.languages[1]
TOLERANCE = 1e-4
HEAD_SCALE = 0.25
"""Brings the random model's logits from up to 70 down to a trained one's; a power of two: no id changes."""
ALL = list(KINDS)

# All 16 projection kinds, each alone, by regular expressions on whole paths.
KIND_PATHS = [
    *(f"encoder.layers.{{}}.self_attn.{kind}" for kind in KINDS[:4]),
    *(f"decoder.layers.{{}}.{block}.{kind}" for block in ("self_attn", "encoder_attn") for kind in KINDS[:4]),
    *(f"{stack}.layers.{{}}.{kind}" for stack in ("encoder", "decoder") for kind in KINDS[4:]),
]
KIND_CASES = [
    {"r": 4, "lora_alpha": 8, "target_modules": "model." + path.replace(".", r"\.").format(r"\d+")}
    for path in KIND_PATHS
]
PATTERNS = {
    "rank_pattern": {"fc1": 3, r"encoder\.layers\.0\.self_attn\.q_proj": 7, "q_proj": 2},
    "alpha_pattern": {"v_proj": 3, r"layers\.1\.fc1": 32},
}
CASES: dict[str, dict[str, Any]] = {
    name: {"r": 4, "lora_alpha": 8, "target_modules": ALL, **changes}
    for name, changes in {
        "all": {"r": 8, "lora_alpha": 16},
        "q and v": {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
        "all-linear": {"r": 5, "lora_alpha": 3, "target_modules": "all-linear"},
        "excluded": {"exclude_modules": ["encoder_attn.q_proj", "fc2"]},
        "rank 1": {"r": 1, "lora_alpha": 1},
        "highest rank": {"r": 64, "lora_alpha": 16, "target_modules": ["q_proj", "fc1", "fc2"]},
        "rsLoRA": {"r": 8, "lora_alpha": 4, "target_modules": ["q_proj", "fc1", "fc2"], "use_rslora": True},
        "patterns": PATTERNS,
        "patterns, rsLoRA": {"lora_alpha": 4, "use_rslora": True, **PATTERNS},
        "DoRA": {"use_dora": True},
        "DoRA, patterns, rsLoRA": {"use_dora": True, "use_rslora": True, **PATTERNS},
        "lora_bias": {"lora_bias": True},
        "one layer": {"layers_to_transform": 1},
        "list of layers": {"layers_to_transform": [0], "layers_pattern": "layers"},
        "regex": {"target_modules": r".*decoder.*(encoder_attn|self_attn)\.(q|v)_proj"},
    }.items()
}
for number, case in enumerate(KIND_CASES):
    CASES[KIND_PATHS[number].format("*")] = case


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("model")
    theirs = reference(SMALL)
    with torch.no_grad():
        theirs.model.decoder.layer_norm.weight *= HEAD_SCALE
        theirs.model.decoder.layer_norm.bias *= HEAD_SCALE
    loaded = Pair(SMALL, small_model(save(theirs, SMALL, folder)), theirs)
    yield loaded
    loaded.ours.teardown()


def load(pair: Pair, folder: Path, case: str, seed: int) -> int:
    """Make the case's adapter and load it; its slot."""
    random_adapter(pair.theirs, folder, seed, **CASES[case])
    slot, _ = pair.ours.promote_lora_from_disk(folder, case, activate=False)
    return slot


def close(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    return float((ours - theirs).abs().max()) < TOLERANCE


def forced_tokens(count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(3, 80) for _ in range(6)] for _ in range(count)]


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_ids_equal_peft(pair: Pair, tmp_path: Path, case: str) -> None:
    slot = load(pair, tmp_path / "adapter", case, seed=len(case))
    sources, forced = random_sources(SMALL, 4, seed=3), forced_tokens(4, seed=4)
    ours = our_logits(pair.ours, sources, SRC, TGT, forced, [slot] * 4)
    base = [
        their_logits(pair.theirs, *row) for row in zip(sources, [SRC] * 4, [TGT] * 4, forced, strict=True)
    ]
    with peft_on(pair.theirs, tmp_path / "adapter") as adapted:
        theirs = [
            their_logits(adapted, *row) for row in zip(sources, [SRC] * 4, [TGT] * 4, forced, strict=True)
        ]
        ids = [their_greedy(adapted, source, SRC, TGT, 12) for source in sources]
    effect = max(float((one - other).abs().max()) for one, other in zip(base, theirs, strict=True))
    assert effect > 0.1, "an adapter without effect would prove nothing"
    assert all(close(one, other) for one, other in zip(ours, theirs, strict=True))
    seen = [our_greedy(pair, source, slot) for source in sources]
    assert seen == ids


def our_greedy(pair: Pair, source: list[int], slot: int) -> list[int]:
    model = pair.ours
    seq = model.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id, seq.adapter_slot = SRC, TGT, slot
    out = model.argmax_batch(model.prefill(source, seq), 1)
    while out[-1] != EOS and len(out) < 12:
        out += model.argmax_batch(model.decode_batch([out[-1]], [seq]), 1)
    model.free_sequence(seq)
    return out


MIXED = ["all", "rsLoRA", "DoRA", "lora_bias", "patterns, rsLoRA"]


@pytest.fixture(scope="module")
def mixed(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, Path]]:
    """Slot and folder of five adapters of different kinds."""
    found = {}
    for number, case in enumerate(MIXED):
        folder = tmp_path_factory.mktemp("mixed") / "adapter"
        random_adapter(pair.theirs, folder, 100 + number, **CASES[case])
        found[case] = (pair.ours.promote_lora_from_disk(folder, f"mixed {case}", activate=False)[0], folder)
    pair.ours.pin_adapters({f"mixed {case}" for case in MIXED})
    return found


def test_mixed_adapters_in_one_batch_give_what_each_gives_alone(
    pair: Pair, mixed: dict[str, tuple[int, Path]]
) -> None:
    slots = [slot for slot, _ in mixed.values()] + [-1, -1, next(iter(mixed.values()))[0]]
    sources, forced = random_sources(SMALL, len(slots), seed=8), forced_tokens(len(slots), seed=9)
    together = our_logits(pair.ours, sources, SRC, TGT, forced, slots)
    for row, slot in enumerate(slots):
        (alone,) = our_logits(pair.ours, [sources[row]], SRC, TGT, [forced[row]], [slot])
        assert close(alone, together[row])
    folders = [folder for _, folder in mixed.values()]
    for row, folder in enumerate(folders):
        with peft_on(pair.theirs, folder) as adapted:
            theirs = their_logits(adapted, sources[row], SRC, TGT, forced[row])
        assert close(together[row], theirs)


def test_a_base_row_is_bitwise_the_same_beside_rows_with_adapters(
    pair: Pair, mixed: dict[str, tuple[int, Path]]
) -> None:
    slots = [-1, *(slot for slot, _ in mixed.values()), -1, -1]
    sources, forced = random_sources(SMALL, len(slots), seed=18), forced_tokens(len(slots), seed=19)
    beside = our_logits(pair.ours, sources, SRC, TGT, forced, slots)
    among = our_logits(pair.ours, sources, SRC, TGT, forced, [-1] * len(slots))
    for row, slot in enumerate(slots):
        assert torch.equal(beside[row], among[row]) == (slot == -1)


def test_beams_with_adapters_equal_peft_while_other_requests_use_others(
    pair: Pair, mixed: dict[str, tuple[int, Path]]
) -> None:
    sources = random_sources(SMALL, len(mixed), seed=28)
    requests = [
        BeamReq(tuple(source), SRC, TGT, adapter_slot=slot, num_beams=3, max_new=10)
        for source, (slot, _) in zip(sources, mixed.values(), strict=True)
    ]
    ours = beams(pair.ours, requests)
    for found, request, source, (_, folder) in zip(ours, requests, sources, mixed.values(), strict=True):
        with peft_on(pair.theirs, folder) as adapted:
            theirs = their_beams(adapted, source, request)
        assert [ids for ids, _ in found] == [ids for ids, _ in theirs]
        assert [score for _, score in found] == pytest.approx([score for _, score in theirs], abs=1e-4)


def test_the_base_model_is_untouched_by_loaded_adapters(
    pair: Pair, mixed: dict[str, tuple[int, Path]]
) -> None:
    assert mixed
    sources = random_sources(SMALL, 6, seed=38)
    assert greedy(pair.ours, sources, SRC, TGT, 12) == [
        their_greedy(pair.theirs, source, SRC, TGT, 12) for source in sources
    ]


def test_a_slot_without_an_adapter_is_refused_and_never_answered_by_the_base_model(pair: Pair) -> None:
    seq = pair.ours.alloc_sequence()
    seq.src_lang_id, seq.tgt_lang_id, seq.adapter_slot = SRC, TGT, 999
    with pytest.raises(Exception, match="slot 999 holds no adapter"):
        pair.ours.prefill_batch_chunk([PrefillSlice.whole([5, 6], seq)])
    pair.ours.free_sequence(seq)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_half_precision_files_equal_peft_on_the_same_file(pair: Pair, tmp_path: Path, dtype: str) -> None:
    folder = random_adapter(pair.theirs, tmp_path / "adapter", 77, **CASES["DoRA"])
    narrow = torch.float16 if dtype == "F16" else torch.bfloat16
    save_file({k: v.to(narrow) for k, v in tensors_of(folder).items()}, folder / "adapter_model.safetensors")
    slot, _ = pair.ours.promote_lora_from_disk(folder, dtype, activate=False)
    sources, forced = random_sources(SMALL, 2, seed=48), forced_tokens(2, seed=49)
    ours = our_logits(pair.ours, sources, SRC, TGT, forced, [slot] * 2)
    with peft_on(pair.theirs, folder) as adapted:
        theirs = [
            their_logits(adapted, one, SRC, TGT, other) for one, other in zip(sources, forced, strict=True)
        ]
    assert all(close(one, other) for one, other in zip(ours, theirs, strict=True))
