"""config.json in, checked values or a named complaint out."""

import json

import pytest

from nllb_engine.config import ModelConfig, StackConfig, cache_rows
from nllb_engine.errors import CheckpointError

SMALL = {
    "model_type": "m2m_100", "d_model": 1024, "vocab_size": 256206, "encoder_layers": 12, "decoder_layers": 6,
    "encoder_attention_heads": 16, "decoder_attention_heads": 8, "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 2048, "max_position_embeddings": 1024, "scale_embedding": True, "bos_token_id": 0,
    "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "activation_function": "relu",
}  # fmt: skip


def test_each_stack_has_its_own_sizes():
    config = ModelConfig.from_json(SMALL)
    assert config.encoder == StackConfig(layers=12, heads=16, ffn_dim=4096)
    assert config.decoder == StackConfig(layers=6, heads=8, ffn_dim=2048)
    assert (config.encoder_head_dim, config.decoder_head_dim) == (64, 128)


def test_absent_fields_take_transformers_defaults():
    absent = ("scale_embedding", "pad_token_id", "decoder_start_token_id", "activation_function")
    config = ModelConfig.from_json({key: value for key, value in SMALL.items() if key not in absent})
    assert config == ModelConfig.from_json(SMALL)


@pytest.mark.parametrize(
    "field",
    ["d_model", "vocab_size", "encoder_layers", "decoder_layers", "encoder_attention_heads",
     "decoder_ffn_dim", "max_position_embeddings", "bos_token_id", "eos_token_id"],
)  # fmt: skip
@pytest.mark.parametrize("value", ["missing", None, -3, 1.5, "12", True, [2]])
def test_a_missing_or_odd_field_is_named_with_the_model_type(field, value):
    raw = {**SMALL, field: value}
    if value == "missing":
        del raw[field]
    with pytest.raises(CheckpointError, match=rf"m2m_100.*{field}"):
        ModelConfig.from_json(raw)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model_type": "nllb-moe"}, "nllb-moe"),
        ({"decoder_attention_heads": 7}, "decoder_attention_heads"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads"),
        ({"activation_function": "gelu"}, "activation_function"),
        ({"eos_token_id": 256206}, "eos_token_id"),
        ({"d_model": 1, "encoder_attention_heads": 1, "decoder_attention_heads": 1}, "d_model"),
        ({"scale_embedding": "yes"}, "scale_embedding"),
    ],
)
def test_a_config_that_cannot_be_run_is_refused(change, word):
    with pytest.raises(CheckpointError, match=word):
        ModelConfig.from_json({**SMALL, **change})


def test_a_damaged_config_file_is_named(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(CheckpointError, match=r"config\.json is missing"):
        ModelConfig.from_folder(tmp_path)
    path.write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        ModelConfig.from_folder(tmp_path)
    path.write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match="list"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(("asked", "rows"), [(1, 512), (512, 512), (513, 513), (2048, 2048), (32768, 2048)])
def test_cache_rows_are_clamped(asked, rows):
    assert cache_rows(asked) == rows
