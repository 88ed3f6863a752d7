"""Conditions in the shape of Kubernetes, and the bounded list of exceptions.

Pure. Knows when a condition's time moves and how much text a status may hold. Must not know what Ready means
for a fleet or an adapter: that is `deployment_status` and `adapter_status`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple

READY = "Ready"
PROGRESSING = "Progressing"
DEGRADED = "Degraded"

MAX_EXCEPTIONS = 10
MAX_MESSAGE = 512
"""Characters of a condition's or an exception's message."""


class Verdict(NamedTuple):
    """What a condition says: whether it holds, why in a word, why in a sentence."""

    holds: bool
    reason: str
    message: str


@dataclass(frozen=True)
class Trouble:
    """Something wrong with one pod."""

    pod: str
    reason: str
    message: str


def set_conditions(
    before: Sequence[Mapping[str, Any]],
    verdicts: Mapping[str, Verdict],
    *,
    generation: int,
    now: datetime,
) -> list[dict[str, Any]]:
    """The conditions after `verdicts`; `lastTransitionTime` moves only where the status changes."""
    known = {condition["type"]: condition for condition in before}
    return [_condition(known.get(name), name, verdict, generation, now) for name, verdict in verdicts.items()]


def _condition(
    before: Mapping[str, Any] | None, name: str, verdict: Verdict, generation: int, now: datetime
) -> dict[str, Any]:
    status = str(verdict.holds)
    since = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if before is not None and before.get("status") == status and before.get("lastTransitionTime"):
        since = before["lastTransitionTime"]
    return {
        "type": name,
        "status": status,
        "reason": verdict.reason,
        "message": shortened(verdict.message),
        "lastTransitionTime": since,
        "observedGeneration": generation,
    }


def condition_of(status: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The condition of that type in a status, if there is one."""
    for condition in status.get("conditions") or ():
        if condition["type"] == name:
            found: Mapping[str, Any] = condition
            return found
    return None


def exceptions_of(troubles: Iterable[Trouble]) -> list[dict[str, str]]:
    """The first ten troubles by pod, for `status.exceptions`."""
    ordered = sorted(troubles, key=lambda trouble: (trouble.pod, trouble.reason))
    return [
        {"pod": trouble.pod, "reason": trouble.reason, "message": shortened(trouble.message)}
        for trouble in ordered[:MAX_EXCEPTIONS]
    ]


def shortened(text: str) -> str:
    """`text`, cut to MAX_MESSAGE characters."""
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"


_PASSING = frozenset(
    {"Spreading", "PodsStarting", "RollingOut", "ScalingIn", "NoReadyPods", "WaitingForSlot"}
)
"""Reasons for not being Ready that pass by themselves; nobody needs an event for them."""


def announcement(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[Literal["Normal", "Warning"], str, str] | None:
    """The event that a change of status is worth: Ready now, or not Ready for a new reason that stays."""
    old, new = condition_of(before, READY), condition_of(after, READY)
    if new is None or (old is not None and (old["status"], old["reason"]) == (new["status"], new["reason"])):
        return None
    if new["status"] == "True":
        return "Normal", new["reason"], new["message"]
    return None if new["reason"] in _PASSING else ("Warning", new["reason"], new["message"])
