"""The settings of one server process: a frozen dataclass, read from the environment once.

Knows names, types, defaults and bounds of the `NLLB_*` variables. Must not know what they steer; nobody else
reads the environment.
"""

import math
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from nllb_server.wire import CONTROL_PORT, PUBLIC_PORT


class SettingsError(Exception):
    """An environment variable that is missing or cannot be used; the message names it and says what fits."""


@dataclass(frozen=True)
class _Bounds:
    doc: str
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[str, ...] = ()


def _setting(
    doc: str, *, default: Any = ..., least: float = -math.inf, most: float = math.inf, choices: Any = ()
) -> Any:
    metadata = {"setting": _Bounds(doc, least, most, tuple(choices))}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ServerSettings:
    """Everything that can be set. Field `max_batch` is the variable `NLLB_MAX_BATCH`, and so on."""

    model_uri: str = _setting("folder of the base model: pvc://CLAIM/path or file:///path")
    volumes_dir: Path = _setting("where claim X is mounted, as X", default=Path("/volumes"))
    wanted_file: Path = _setting(
        "wanted set to converge to when no operator calls", default=Path("/etc/nllb/wanted.json")
    )
    adapters_dir: Path = _setting("disk tier of adapters", default=Path("/var/lib/nllb/adapters"))
    cache_dir: Path = _setting(
        "where a bf16 copy of a float32 checkpoint is written once", default=Path("/var/lib/nllb/cache")
    )
    device: str = _setting(
        "auto (a GPU, or an error), cuda or cpu", default="auto", choices=("auto", "cuda", "cpu")
    )
    dtype: str = _setting(
        "arithmetic; auto: bfloat16 on a GPU, float32 on the CPU",
        default="auto",
        choices=("auto", "float32", "bfloat16"),
    )
    default_source: str | None = _setting("source language of requests that name none", default=None)
    default_target: str | None = _setting("target language of requests that name none", default=None)
    max_batch: int = _setting("rows decoded together", default=64, least=1, most=4096)
    max_seq_len: int = _setting("source and output tokens of a text", default=512, least=8, most=2048)
    max_beams: int = _setting("largest num_beams of a request", default=8, least=1, most=64)
    adapter_slots: int = _setting("adapters held by the device at once", default=8, least=1, most=1024)
    adapter_max_rank: int = _setting("largest rank of an adapter", default=64, least=1, most=512)
    max_texts: int = _setting("texts in one request", default=256, least=1)
    max_body_bytes: int = _setting("size of a request's body", default=1 << 20, least=1024)
    max_queue_tokens: int = _setting("source tokens waiting before 429", default=65536, least=1)
    max_adapter_bytes: int = _setting("size of an adapter's files", default=1 << 30, least=1024)
    request_seconds: float = _setting("deadline of one translation request", default=120.0, least=0.1)
    ready_deadline_seconds: float = _setting(
        "how long readiness waits for required adapters", default=120.0, least=0
    )
    boot_grace_seconds: float = _setting(
        "how long a new pod waits for its operator before it converges alone", default=10.0, least=0
    )
    drain_seconds: float = _setting("longest time from SIGTERM to exit", default=60.0, least=0)
    drain_lag_seconds: float = _setting(
        "how long requests are still accepted after SIGTERM, while endpoints forget this pod",
        default=5.0,
        least=0,
    )
    host: str = _setting("address to listen on", default="0.0.0.0")  # the pod's own network namespace
    http_port: int = _setting("port of the public API", default=PUBLIC_PORT, least=0, most=65535)
    control_port: int = _setting("port of operator and peers", default=CONTROL_PORT, least=0, most=65535)
    pod_name: str = _setting("name in replies and inventory; default: the host's name", default="")
    pod_uid: str = _setting("UID of the pod", default="")
    fleet: str = _setting("the NllbDeployment this pod belongs to", default="")
    cpu_threads: int = _setting("threads of torch; 0: torch decides", default=0, least=0, most=1024)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "ServerSettings":
        """Read `NLLB_*`; SettingsError for what is missing, unknown or out of bounds."""
        types = get_type_hints(cls)
        values: dict[str, Any] = {}
        for item in fields(cls):
            variable = variable_of(item.name)
            if raw := env.get(variable, ""):
                values[item.name] = _parse(variable, raw, types[item.name], item.metadata["setting"])
        if "model_uri" not in values:
            raise SettingsError("NLLB_MODEL_URI is not set; give pvc://CLAIM/path or file:///path")
        known = {variable_of(item.name) for item in fields(cls)}
        if unknown := sorted(name for name in env if name.startswith("NLLB_") and name not in known):
            raise SettingsError(f"unknown settings {', '.join(unknown)}; known: {', '.join(sorted(known))}")
        values.setdefault("pod_name", socket.gethostname())
        settings = cls(**values)
        if settings.drain_lag_seconds > settings.drain_seconds:
            raise SettingsError("NLLB_DRAIN_LAG_SECONDS must not exceed NLLB_DRAIN_SECONDS")
        return settings

    def folder_of(self, uri: str) -> Path:
        """The folder a `pvc://CLAIM/path` or `file:///path` means on this pod; SettingsError for others."""
        return folder_of(uri, self.volumes_dir)


def variable_of(field_name: str) -> str:
    """The environment variable of a field."""
    return f"NLLB_{field_name.upper()}"


def folder_of(uri: str, volumes_dir: Path) -> Path:
    """Where the content of `uri` is mounted; SettingsError says which forms are understood."""
    if match := re.fullmatch(r"pvc://([a-z0-9]([-a-z0-9.]*[a-z0-9])?)(/.*)?", uri):
        inner = Path((match.group(3) or "").lstrip("/"))
        if ".." in inner.parts:
            raise SettingsError(f"{uri}: '..' is not allowed in a path of a volume")
        return volumes_dir / match.group(1) / inner
    if match := re.fullmatch(r"file://(/.+)", uri):
        return Path(match.group(1))
    raise SettingsError(f"{uri!r} is not understood; use pvc://CLAIM/path or file:///absolute/path")


def _parse(variable: str, raw: str, kind: Any, bounds: _Bounds) -> Any:
    parse: Callable[[str], Any] = next(
        option for option in (*get_args(kind), kind) if option is not type(None)
    )
    try:
        value = parse(raw)
    except ValueError:
        raise SettingsError(f"{variable} is {raw!r}; it must be a number ({bounds.doc})") from None
    if bounds.choices and value not in bounds.choices:
        raise SettingsError(f"{variable} is {raw!r}; use one of {', '.join(bounds.choices)} ({bounds.doc})")
    if isinstance(value, int | float) and not bounds.least <= value <= bounds.most:
        raise SettingsError(
            f"{variable} is {raw}; it must be from {bounds.least:g} to {bounds.most:g} ({bounds.doc})"
        )
    return value
