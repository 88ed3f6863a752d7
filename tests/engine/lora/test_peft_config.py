"""adapter_config.json: what changes the mathematics in a way that is not served is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
from gate_cases import CONFIG, reason
from lora_adapters import small_adapter

CONFIGS: list[tuple[str, dict[str, Any]]] = [
    ("NotLora", {"peft_type": "IA3"}),
    ("NotLora", {"peft_type": 7}),
    ("BadRank", {"r": 0}),
    ("BadRank", {"r": True}),
    ("BadRank", {"r": "8"}),
    ("BadAlpha", {"lora_alpha": 0}),
    ("BadAlpha", {"lora_alpha": -1}),
    ("BadAlpha", {"lora_alpha": 1e30}),
    ("BadAlpha", {"lora_alpha": 10**400}),
    ("BadAlpha", {"alpha_pattern": {"q_proj": None}}),
    ("BadRank", {"rank_pattern": {"q_proj": 0}}),
    ("RankExceedsPool", {"r": 9}),
    ("RankExceedsPool", {"rank_pattern": {"v_proj": 9}}),
    ("BadField", {"target_modules": []}),
    ("BadField", {"target_modules": None}),
    ("BadField", {"target_modules": [1]}),
    ("BadField", {"use_rslora": "yes"}),
    ("BadField", {"layers_to_transform": ["a"]}),
    ("BadField", {"layers_pattern": "layers"}),
    ("BadField", {"target_modules": ".*q_proj", "layers_to_transform": [1]}),
    ("BadField", {"use_dora": True, "lora_bias": True}),
    ("BadField", {"rank_pattern": [1]}),
    ("BadPattern", {"target_modules": "(q_proj"}),
    ("UnsafePattern", {"target_modules": r"(.*a)*q_proj"}),
    ("UnsafePattern", {"target_modules": r".*.*.*.*.*q_proj"}),
    ("UnsafePattern", {"rank_pattern": {"x" * 600: 2}}),
    ("NoModule", {"target_modules": ["query"]}),
    ("UnsupportedModule", {"target_modules": ["q_proj", "lm_head"]}),
    ("UnsupportedModule", {"target_modules": ["shared"]}),
    ("UnsupportedModule", {"target_modules": r".*(embed_tokens|q_proj)"}),
    ("UnsupportedField", {"bias": "all"}),
    ("UnsupportedField", {"bias": "lora_only"}),
    ("UnsupportedField", {"fan_in_fan_out": True}),
    ("UnsupportedField", {"modules_to_save": ["lm_head"]}),
    ("UnsupportedField", {"trainable_token_indices": [5]}),
    ("UnsupportedField", {"layer_replication": [[0, 1]]}),
    ("UnsupportedField", {"alora_invocation_tokens": [1]}),
    ("UnsupportedField", {"use_qalora": True}),
    ("UnsupportedField", {"target_parameters": ["x"]}),
    ("UnsupportedField", {"init_lora_weights": "pissa"}),
    ("UnsupportedField", {"init_lora_weights": "olora"}),
    ("UnsupportedField", {"arrow_config": {"top_k": 2}}),
    ("UnsupportedField", {"a_field_of_the_future": 1}),
    ("MissingTensor", {"target_modules": ["q_proj", "v_proj", "fc1"]}),
    ("MissingTensor", {"use_dora": True}),
    ("MissingTensor", {"lora_bias": True}),
    ("UnmatchedTensor", {"target_modules": ["q_proj"]}),
    ("UnmatchedTensor", {"layers_to_transform": 0}),
    ("ShapeMismatch", {"r": 5}),
]


@pytest.mark.parametrize(("wanted", "change"), CONFIGS, ids=[f"{r} {c}"[:60] for r, c in CONFIGS])
def test_a_configuration_is_refused_by_name(wanted: str, change: dict[str, Any], tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "bad", 1)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", **CONFIG, **change}))
    assert reason(folder) == wanted


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("BadJson", b"{"),
        ("BadJson", b"[]"),
        ("BadJson", b"\xff\xfe"),
        ("BadJson", b'{"lora_alpha": NaN}'),
        ("BadJson", b"[" * 60_000),
        ("DuplicateKey", b'{"r": 4, "r": 4}'),
        ("ConfigTooLarge", b" " * 70_000),
    ],
)
def test_a_configuration_that_is_no_plain_object_is_refused(wanted: str, text: bytes, tmp_path: Path) -> None:
    folder = small_adapter(tmp_path / "bad", 1)
    (folder / "adapter_config.json").write_bytes(text)
    assert reason(folder) == wanted
