"""What a checkpoint's config.json says, as frozen values.

Knows the JSON fields of M2M100 models. Must not know torch, files of weights, or anything that runs.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nllb_engine.errors import CheckpointError

MODEL_TYPES = ("m2m_100", "nllb")
DEFAULT_CACHE_ROWS = 512
MAX_CACHE_ROWS = 2048
# The decoder's prompt: the start token and the forced target language.
PROMPT_ROWS = 2


def cache_rows(max_seq_len: int) -> int:
    """Decoder positions a sequence may fill: `max_seq_len` clamped to 512..=2048."""
    return max(DEFAULT_CACHE_ROWS, min(max_seq_len, MAX_CACHE_ROWS))


@dataclass(frozen=True)
class StackConfig:
    """Sizes of one stack. `head_dim` is `d_model / heads`."""

    layers: int
    heads: int
    ffn_dim: int


@dataclass(frozen=True)
class ModelConfig:
    """An M2M100 checkpoint's sizes and special ids, all checked to be usable."""

    model_type: str
    d_model: int
    vocab_size: int
    encoder: StackConfig
    decoder: StackConfig
    max_position_embeddings: int
    scale_embedding: bool
    tie_word_embeddings: bool
    activation_function: str
    bos_token_id: int
    pad_token_id: int
    eos_token_id: int
    decoder_start_token_id: int

    @property
    def encoder_head_dim(self) -> int:
        """Width of one encoder attention head."""
        return self.d_model // self.encoder.heads

    @property
    def decoder_head_dim(self) -> int:
        """Width of one decoder attention head (self- and cross-attention)."""
        return self.d_model // self.decoder.heads

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `config.json` of a Hugging Face folder; CheckpointError when it is missing or unusable."""
        return cls.from_json(read_json_object(folder / "config.json"))

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "ModelConfig":
        """Check and take over the fields; CheckpointError names the model type and the field."""
        model_type = raw.get("model_type")
        if model_type not in MODEL_TYPES:
            raise CheckpointError(f"model_type is {model_type!r}; this engine runs m2m_100 and nllb")
        reader = _FieldReader("m2m_100", raw)
        eos = reader.token_id("eos_token_id")
        config = cls(
            model_type="m2m_100",
            d_model=reader.size("d_model"),
            vocab_size=reader.size("vocab_size"),
            encoder=reader.stack("encoder"),
            decoder=reader.stack("decoder"),
            max_position_embeddings=reader.size("max_position_embeddings"),
            scale_embedding=reader.flag("scale_embedding", True),
            tie_word_embeddings=reader.flag("tie_word_embeddings", True),
            activation_function=reader.activation(),
            bos_token_id=reader.token_id("bos_token_id"),
            pad_token_id=reader.token_id("pad_token_id", 1),
            eos_token_id=eos,
            decoder_start_token_id=reader.token_id("decoder_start_token_id", eos),
        )
        config._check()
        return config

    def _check(self) -> None:
        for name, stack in (("encoder", self.encoder), ("decoder", self.decoder)):
            if self.d_model % stack.heads:
                raise CheckpointError(f"m2m_100: d_model {self.d_model} does not divide by "
                                      f"{name}_attention_heads {stack.heads}")
        if self.d_model % 2 or self.d_model < 4:
            raise CheckpointError(f"m2m_100: d_model {self.d_model} must be even and at least 4, "
                                  "half for sines and half for cosines")
        for name in ("bos_token_id", "pad_token_id", "eos_token_id", "decoder_start_token_id"):
            if getattr(self, name) >= self.vocab_size:
                raise CheckpointError(f"m2m_100: {name} {getattr(self, name)} is outside the vocabulary "
                                      f"of {self.vocab_size}")


@dataclass(frozen=True)
class NllbLang:
    """The deployment's languages as the tokenizer resolved them.

    `src_lang_id` and `tgt_lang_id` are the defaults for a sequence that names none; 0 means no default.
    `language_ids` are all ids that are languages; empty switches the check off. `legacy_behaviour` puts the
    source language behind the end token, as models fine-tuned before April 2023 expect.
    """

    src_lang_id: int = 0
    tgt_lang_id: int = 0
    language_ids: frozenset[int] = frozenset()
    legacy_behaviour: bool = False


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; CheckpointError says which file is missing or damaged."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; give the folder of a Hugging Face checkpoint") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds {type(raw).__name__}, not a JSON object")
    return raw


class _FieldReader:
    """Typed access to config.json; every complaint names the model type and the field."""

    def __init__(self, model_type: str, raw: Mapping[str, Any]) -> None:
        self._model_type = model_type
        self._raw = raw

    def size(self, name: str) -> int:
        value = self._raw.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._odd(name, "a whole number of at least 1")
        return value

    def token_id(self, name: str, default: int | None = None) -> int:
        value = self._raw.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._odd(name, "a token id of at least 0")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._odd(name, "true or false")
        return value

    def activation(self) -> str:
        value = self._raw.get("activation_function", "relu")
        if value != "relu":
            raise self._odd("activation_function", '"relu", the only one NLLB uses')
        return "relu"

    def stack(self, name: str) -> StackConfig:
        return StackConfig(self.size(f"{name}_layers"), self.size(f"{name}_attention_heads"),
                           self.size(f"{name}_ffn_dim"))

    def _odd(self, name: str, wanted: str) -> CheckpointError:
        found = repr(self._raw[name]) if name in self._raw else "missing"
        return CheckpointError(f"{self._model_type}: field {name} of config.json is {found}; "
                               f"it must be {wanted}")
