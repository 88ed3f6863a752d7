"""Which modules an adapter changes, at which rank and scale: PEFT's matching, as pure functions.

Knows module paths and PeftAdapterConfig. Must not know files, shapes or tensors. Rules of peft 0.21.2:
`check_target_module_exists` and `get_pattern_key`.
"""

import re
from collections.abc import Iterable, Sequence

from nllb_engine.errors import AdapterRejected
from nllb_engine.interface.values import PeftAdapterConfig

ALL_LINEAR = "all-linear"
_LAYER_NUMBER = re.compile(r".*?\.[^.]*\.(?P<idx>\d+)\.")
_MAX_PATTERN_LENGTH = 512
_MAX_QUANTIFIERS = 4


def targeted_modules(config: PeftAdapterConfig, paths: Iterable[str]) -> list[str]:
    """The `paths` (for example `model.decoder.layers.3.fc1`) that the configuration names, in their order."""
    return [path for path in paths if _targets(config, path)]


def module_rank(config: PeftAdapterConfig, path: str) -> int:
    """Rank of the module `path`: the first `rank_pattern` that fits, else `r`."""
    return next((rank for key, rank in config.rank_pattern if _fits(key, path)), config.r)


def module_scaling(config: PeftAdapterConfig, path: str) -> float:
    """Factor on B·A·x of the module `path`: alpha/r, or alpha/sqrt(r) with rank-stabilised LoRA."""
    alpha = next((alpha for key, alpha in config.alpha_pattern if _fits(key, path)), config.lora_alpha)
    rank = module_rank(config, path)
    return alpha / (rank**0.5 if config.use_rslora else rank)


def checked_pattern(pattern: str) -> str:
    """The regular expression, if matching it takes bounded time; AdapterRejected names what is wrong.

    A repeated group, or many repetitions in a row, can run for hours on one module path.
    """
    if len(pattern) > _MAX_PATTERN_LENGTH:
        raise AdapterRejected(
            "UnsafePattern",
            f"a pattern has {len(pattern)} characters; at most "
            f"{_MAX_PATTERN_LENGTH} are read; list the modules instead",
        )
    quantifiers = len(re.findall(r"[*+{]", pattern))
    if quantifiers > _MAX_QUANTIFIERS or re.search(r"\)\s*[*+{]|\\[1-9]|\(\?P=", pattern):
        raise AdapterRejected(
            "UnsafePattern",
            f"the pattern {pattern!r} repeats a group, refers back, or repeats "
            f"more than {_MAX_QUANTIFIERS} times; list the modules instead",
        )
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise AdapterRejected("BadPattern", f"{pattern!r} is no regular expression: {error}") from error
    return pattern


def _targets(config: PeftAdapterConfig, path: str) -> bool:
    if config.exclude_modules and _named(config.exclude_modules, path):
        return False
    if config.target_modules == ALL_LINEAR:
        return True
    return _named(config.target_modules, path) and _in_layers(config, path)


def _named(entries: Sequence[str] | str, path: str) -> bool:
    if isinstance(entries, str):
        return re.fullmatch(entries, path) is not None
    return any(path == entry or path.endswith(f".{entry}") for entry in entries)


def _in_layers(config: PeftAdapterConfig, path: str) -> bool:
    if not config.layers_to_transform or isinstance(config.target_modules, str):
        return True
    found = _LAYER_NUMBER.match(path) if not config.layers_pattern else None
    for pattern in config.layers_pattern:
        if found := re.match(rf"(?:^|.*?\.){pattern}\.(?P<idx>\d+)\.", path):
            break
    return found is not None and int(found["idx"]) in config.layers_to_transform


def _fits(key: str, path: str) -> bool:
    return re.match(rf"(.*\.)?({key})$", path) is not None
