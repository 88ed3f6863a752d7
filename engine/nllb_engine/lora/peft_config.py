"""adapter_config.json: parsed into PeftAdapterConfig, or refused by name.

Knows PEFT's field names and which of them change the mathematics. Must not know the model's modules or
weights. A field this module does not know is accepted only when it is empty, so that a new kind of
adapter is never run as if it were an old one.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nllb_engine.errors import AdapterRejected
from nllb_engine.interface.values import PeftAdapterConfig
from nllb_engine.lora.digest import open_plain
from nllb_engine.lora.targets import ALL_LINEAR, checked_pattern

CONFIG_NAME = "adapter_config.json"
MAX_CONFIG_BYTES = 64 * 1024
MAX_ALPHA = 65504.0
_MAX_PATTERNS = 256
# Bookkeeping, training-time settings and hints that say nothing about the forward pass.
_NEUTRAL = frozenset({
    "peft_type", "task_type", "base_model_name_or_path", "auto_mapping", "revision", "inference_mode",
    "peft_version", "lora_dropout", "init_lora_weights", "loftq_config", "eva_config", "corda_config",
    "lora_ga_config", "megatron_core", "qalora_group_size", "runtime_config", "bias", "fan_in_fan_out",
    "ensure_weight_tying",
})  # fmt: skip
_READ = frozenset(PeftAdapterConfig.__dataclass_fields__)
# Initialisations that leave the base model's weights alone; the others need a base that they have changed.
_NEUTRAL_INIT = (True, False, None, "gaussian", "eva", "orthogonal")


def read_peft_config(folder: Path) -> PeftAdapterConfig:
    """Read and check `folder`/adapter_config.json; AdapterRejected names the field."""
    if not (folder / CONFIG_NAME).exists():
        raise AdapterRejected(
            "ConfigMissing", f"there is no {CONFIG_NAME}; give a folder that PEFT's save_pretrained wrote"
        )
    with open_plain(folder / CONFIG_NAME) as file:
        text = file.read(MAX_CONFIG_BYTES + 1)
    if len(text) > MAX_CONFIG_BYTES:
        raise AdapterRejected("ConfigTooLarge", f"{CONFIG_NAME} is larger than {MAX_CONFIG_BYTES} bytes")
    return parse_peft_config(strict_json_object(text, CONFIG_NAME))


def strict_json_object(text: bytes, what: str) -> dict[str, Any]:
    """A JSON object without repeated keys and without NaN or Infinity; AdapterRejected calls it `what`."""
    try:
        value = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except AdapterRejected as error:
        raise AdapterRejected(error.reason, f"{what}: {error.detail}") from None
    except (ValueError, RecursionError) as error:
        raise AdapterRejected("BadJson", f"{what} is not JSON: {type(error).__name__}") from error
    if not isinstance(value, dict):
        raise AdapterRejected("BadJson", f"{what} is not a JSON object")
    return value


def parse_peft_config(raw: Mapping[str, Any]) -> PeftAdapterConfig:
    """Check every field and keep those that change the mathematics."""
    _refuse_other_methods(raw)
    fields = _Fields(raw)
    targets = fields.targets("target_modules")
    if not targets:
        raise fields.odd("target_modules", "a list of module names, a regular expression or all-linear")
    config = PeftAdapterConfig(
        r=fields.rank("r", raw.get("r", 8)),
        lora_alpha=fields.alpha("lora_alpha", raw.get("lora_alpha", 8)),
        use_rslora=fields.flag("use_rslora"),
        target_modules=targets,
        exclude_modules=fields.targets("exclude_modules"),
        layers_to_transform=fields.layers(),
        layers_pattern=fields.layers_pattern(),
        rank_pattern=tuple(
            (k, fields.rank(f"rank_pattern {k}", v)) for k, v in fields.patterns("rank_pattern")
        ),
        alpha_pattern=tuple(
            (k, fields.alpha(f"alpha_pattern {k}", v)) for k, v in fields.patterns("alpha_pattern")
        ),
        use_dora=fields.flag("use_dora"),
        lora_bias=fields.flag("lora_bias"),
    )
    if isinstance(config.target_modules, str) and (config.layers_to_transform or config.layers_pattern):
        raise fields.odd("layers_to_transform", "absent when target_modules is a string, as in PEFT")
    if config.layers_pattern and not config.layers_to_transform:
        raise fields.odd("layers_to_transform", "given when layers_pattern is, as in PEFT")
    if config.use_dora and config.lora_bias:
        raise fields.odd("lora_bias", "false with use_dora, as in PEFT")
    return config


def _refuse_other_methods(raw: Mapping[str, Any]) -> None:
    peft_type = raw.get("peft_type", "LORA")
    if not isinstance(peft_type, str) or peft_type.upper() != "LORA":
        raise AdapterRejected("NotLora", f"peft_type is {peft_type!r}; only LORA adapters are served")
    if raw.get("bias") not in (None, "none"):
        raise _unsupported("bias", raw["bias"], "train with bias='none' (lora_bias is supported)")
    if raw.get("fan_in_fan_out"):
        raise _unsupported("fan_in_fan_out", True, "NLLB's layers are all plain Linear; set it to false")
    if raw.get("init_lora_weights", True) not in _NEUTRAL_INIT:
        raise _unsupported(
            "init_lora_weights",
            raw["init_lora_weights"],
            "it changes the base weights; convert the "
            "adapter with save_pretrained(path_initial_model_for_weight_conversion=...)",
        )
    for name, value in raw.items():
        if name not in _READ and name not in _NEUTRAL and not _is_empty(value):
            raise _unsupported(name, value, "train without it")


def _unsupported(name: str, value: object, advice: str) -> AdapterRejected:
    return AdapterRejected(
        "UnsupportedField",
        f"{CONFIG_NAME} sets {name} to {str(value)[:80]!r}, which changes the "
        f"mathematics and is not served; {advice}",
    )


def _is_empty(value: object) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


class _Fields:
    """Typed access; every complaint names the field."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def flag(self, name: str) -> bool:
        value = self._raw.get(name) or False
        if value not in (True, False) or not isinstance(value, bool):
            raise self.odd(name, "true or false")
        return value

    def rank(self, name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise AdapterRejected(
                "BadRank",
                f"{CONFIG_NAME}: {name} is {str(value)[:80]!r}; it must be a whole number of at least 1",
            )
        return value

    def alpha(self, name: str, value: object) -> float:
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0 < number <= MAX_ALPHA:
            raise AdapterRejected(
                "BadAlpha",
                f"{CONFIG_NAME}: {name} is {str(value)[:80]!r}; "
                f"it must be above 0 and at most {MAX_ALPHA:.0f}",
            )
        return float(number)

    def targets(self, name: str) -> tuple[str, ...] | str:
        value = self._raw.get(name) or ()
        if isinstance(value, str):
            if value.lower() == ALL_LINEAR and name == "target_modules":
                return ALL_LINEAR
            return checked_pattern(value)
        return self._words(name, value)

    def layers(self) -> tuple[int, ...]:
        value = self._raw.get("layers_to_transform")
        numbers = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in numbers):
            raise self.odd("layers_to_transform", "a layer number or a list of them")
        return tuple(numbers)

    def layers_pattern(self) -> tuple[str, ...]:
        value = self._raw.get("layers_pattern") or ()
        words = (value,) if isinstance(value, str) else self._words("layers_pattern", value)
        return tuple(checked_pattern(word) for word in words)

    def patterns(self, name: str) -> list[tuple[str, object]]:
        value = self._raw.get(name) or {}
        if not isinstance(value, dict) or len(value) > _MAX_PATTERNS:
            raise self.odd(name, f"an object of at most {_MAX_PATTERNS} module patterns")
        return [(checked_pattern(key), one) for key, one in value.items()]

    def _words(self, name: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
            raise self.odd(name, "a list of names")
        return tuple(value)

    def odd(self, name: str, wanted: str) -> AdapterRejected:
        """The complaint about field `name`."""
        return AdapterRejected(
            "BadField", f"{CONFIG_NAME}: {name} is {str(self._raw.get(name))[:80]!r}; it must be {wanted}"
        )


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise AdapterRejected("DuplicateKey", f"the key {key[:200]!r} occurs twice")
        found[key] = value
    return found


def _no_constant(name: str) -> None:
    raise AdapterRejected("BadJson", f"{name} is no number")
