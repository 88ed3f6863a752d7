"""The gate on the module shapes of `SMALL`, and what it says."""

from pathlib import Path

import pytest

from nllb_engine.errors import AdapterRejected
from nllb_engine.lora.adapter_file import AdapterContent, read_adapter

MAX_RANK = 8
SHAPES: dict[str, tuple[int, int]] = {}
for _layer in range(2):
    for _block in (
        "encoder.layers.{}.self_attn",
        "decoder.layers.{}.self_attn",
        "decoder.layers.{}.encoder_attn",
    ):
        for _kind in ("q_proj", "k_proj", "v_proj", "out_proj"):
            SHAPES[f"model.{_block.format(_layer)}.{_kind}"] = (32, 32)
    for _stack, _width in (("encoder", 48), ("decoder", 40)):
        SHAPES[f"model.{_stack}.layers.{_layer}.fc1"] = (_width, 32)
        SHAPES[f"model.{_stack}.layers.{_layer}.fc2"] = (32, _width)
CONFIG = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}


def read(folder: Path) -> AdapterContent:
    return read_adapter(folder, SHAPES, MAX_RANK)


def reason(folder: Path) -> str:
    with pytest.raises(AdapterRejected) as caught:
        read(folder)
    assert caught.value.detail
    return caught.value.reason
