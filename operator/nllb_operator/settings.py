"""The settings of the operator's process: one frozen dataclass, read from the environment once.

Knows names, types and defaults of `NLLB_OPERATOR_*`. Must not know what they steer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


class SettingsError(ValueError):
    """A variable that cannot be used; the message names it and says what to write."""


@dataclass(frozen=True)
class OperatorSettings:
    """What the platform decides. Each field is read from NLLB_OPERATOR_ and its name in capitals."""

    namespaces: tuple[str, ...] = ()
    """Namespaces to work in, separated by commas; none: all of them."""
    allow_file_uris: bool = False
    """Whether `file:///path` may name a model or an adapter inside the image."""
    resync_seconds: float = 10.0
    """How often every fleet is looked at without a change."""
    busy_seconds: float = 0.5
    """How often a fleet is looked at while something is on its way in it."""
    pod_timeout_seconds: float = 2.0
    """How long a pod may take to answer the operator; others do not wait for it."""
    workers: int = 4
    """Fleets that are reconciled at the same time."""
    health_host: str = "0.0.0.0"
    """Address of /livez and /metrics."""
    health_port: int = 8080
    """Port of /livez and /metrics; 0 is any free one."""

    @classmethod
    def from_env(cls, environment: Mapping[str, str]) -> OperatorSettings:
        """Read the variables that are set. Raises SettingsError for a value that does not fit its type."""
        values: dict[str, object] = {}
        for item in fields(cls):
            variable = f"NLLB_OPERATOR_{item.name.upper()}"
            text = environment.get(variable, "").strip()
            if text:
                values[item.name] = _parse(variable, text, item.default)
        return cls(**values)  # type: ignore[arg-type]


def _parse(variable: str, text: str, default: object) -> object:
    """`text` as the type that `default` has."""
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise SettingsError(f"{variable} is {text!r}; write true or false")
        return text.lower() == "true"
    if isinstance(default, tuple):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if isinstance(default, str):
        return text
    try:
        number = int(text) if isinstance(default, int) else float(text)
    except ValueError:
        raise SettingsError(f"{variable} is {text!r}; write a number") from None
    if not 0 <= number < float("inf"):
        raise SettingsError(f"{variable} is {text!r}; write a number of at least 0")
    return number
