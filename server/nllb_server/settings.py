"""The settings of one server process: a frozen dataclass, read from the environment once.

Knows names, types, defaults and bounds of the `NLLB_*` variables. Must not know what they steer; nobody else
reads the environment.
"""

import math
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from nllb_server.wire import CONTROL_PORT, PUBLIC_PORT


class SettingsError(Exception):
    """An environment variable that is missing or cannot be used; the message names it and says what fits."""


@dataclass(frozen=True)
class Setting:
    """What a setting is for and which values fit; travels in the field's annotation."""

    doc: str
    least: float = -math.inf
    most: float = math.inf
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServerSettings:
    """Everything that can be set. Field `max_batch` is the variable `NLLB_MAX_BATCH`, and so on."""

    model_uri: Annotated[str, Setting("folder of the base model: pvc://CLAIM/path or file:///path")]
    volumes_dir: Annotated[Path, Setting("where claim X is mounted, as X")] = Path("/volumes")
    wanted_file: Annotated[Path, Setting("wanted set to converge to when no operator calls")] = Path(
        "/etc/nllb/wanted.json"
    )
    adapters_dir: Annotated[Path, Setting("disk tier of adapters")] = Path("/var/lib/nllb/adapters")
    cache_dir: Annotated[Path, Setting("where a bf16 copy of a float32 checkpoint is written once")] = Path(
        "/var/lib/nllb/cache"
    )
    device: Annotated[
        str, Setting("auto (a GPU, or an error), cuda or cpu", choices=("auto", "cuda", "cpu"))
    ] = "auto"
    dtype: Annotated[
        str,
        Setting(
            "arithmetic; auto: bfloat16 on a GPU, float32 on the CPU", choices=("auto", "float32", "bfloat16")
        ),
    ] = "auto"
    default_source: Annotated[str | None, Setting("source language of requests that name none")] = None
    default_target: Annotated[str | None, Setting("target language of requests that name none")] = None
    max_batch: Annotated[int, Setting("rows decoded together", 1, 4096)] = 64
    max_seq_len: Annotated[int, Setting("output tokens of a text", 512, 2048)] = 512
    max_beams: Annotated[int, Setting("largest num_beams of a request", 1, 64)] = 8
    adapter_slots: Annotated[int, Setting("adapters held by the device at once", 1, 1024)] = 8
    adapter_max_rank: Annotated[int, Setting("largest rank of an adapter", 1, 512)] = 64
    max_texts: Annotated[int, Setting("texts in one request", 1)] = 256
    max_body_bytes: Annotated[int, Setting("size of a request's body", 1024)] = 1 << 20
    max_queue_tokens: Annotated[int, Setting("source tokens waiting before 429", 1)] = 65536
    max_adapter_bytes: Annotated[int, Setting("size of an adapter's files", 1024)] = 1 << 30
    request_seconds: Annotated[float, Setting("deadline of one translation request", 0.1)] = 120.0
    ready_deadline_seconds: Annotated[float, Setting("how long readiness waits for required adapters", 0)] = (
        120.0
    )
    boot_grace_seconds: Annotated[
        float, Setting("how long a new pod waits for its operator before it converges alone", 0)
    ] = 10.0
    drain_seconds: Annotated[float, Setting("longest time from SIGTERM to exit", 0)] = 60.0
    drain_lag_seconds: Annotated[
        float, Setting("how long after SIGTERM new requests are taken, at most drain_seconds", 0)
    ] = 5.0
    host: Annotated[str, Setting("address to listen on")] = "0.0.0.0"  # the pod's own network namespace
    http_port: Annotated[int, Setting("port of the public API", 0, 65535)] = PUBLIC_PORT
    control_port: Annotated[int, Setting("port of operator and peers", 0, 65535)] = CONTROL_PORT
    pod_name: Annotated[str, Setting("name in replies and inventory; default: the host's name")] = ""
    pod_uid: Annotated[str, Setting("UID of the pod")] = ""
    fleet: Annotated[str, Setting("the NllbDeployment this pod belongs to")] = ""
    cpu_threads: Annotated[int, Setting("threads of torch; 0: torch decides", 0, 1024)] = 0

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> "ServerSettings":
        """Read `NLLB_*`; SettingsError for what is missing or out of setting.

        Unknown `NLLB_*` variables are left alone: Kubernetes adds its own for a Service named nllb.
        """
        hints = get_type_hints(cls, include_extras=True)
        values: dict[str, Any] = {}
        for item in fields(cls):
            kind, setting = get_args(hints[item.name])
            if raw := env.get(variable_of(item.name), ""):
                values[item.name] = _parse(variable_of(item.name), raw, kind, setting)
        if "model_uri" not in values:
            raise SettingsError("NLLB_MODEL_URI is not set; give pvc://CLAIM/path or file:///path")
        values.setdefault("pod_name", socket.gethostname())
        return cls(**values)

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


def _parse(variable: str, raw: str, kind: Any, setting: Setting) -> Any:
    parse: Callable[[str], Any] = next(
        option for option in (*get_args(kind), kind) if option is not type(None)
    )
    try:
        value = parse(raw)
    except ValueError:
        raise SettingsError(f"{variable} is {raw!r}; it must be a number ({setting.doc})") from None
    if setting.choices and value not in setting.choices:
        raise SettingsError(f"{variable} is {raw!r}; use one of {', '.join(setting.choices)} ({setting.doc})")
    if isinstance(value, int | float) and not setting.least <= value <= setting.most:
        raise SettingsError(
            f"{variable} is {raw}; it must be from {setting.least:g} to {setting.most:g} ({setting.doc})"
        )
    return value
