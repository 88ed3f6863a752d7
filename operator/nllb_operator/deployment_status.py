"""The status of an NllbDeployment, from what was observed.

Pure. Knows what Ready, Progressing and Degraded mean for a fleet and how to say so in a sentence that a
person can act on. Must not know how any of it was observed or is written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from nllb_operator import naming
from nllb_operator.backends.base import PodView
from nllb_operator.conditions import (
    DEGRADED,
    PROGRESSING,
    READY,
    Trouble,
    Verdict,
    exceptions_of,
    set_conditions,
)
from nllb_operator.manifests import template_hash
from nllb_operator.resources import NllbDeployment
from nllb_operator.wanted import Problem
from nllb_server.wire import PUBLIC_PORT


def deployment_status(
    deployment: NllbDeployment,
    before: Mapping[str, Any],
    pods: Sequence[PodView],
    *,
    adapters: int,
    silent: Sequence[PodView],
    problem: Problem | None,
    now: datetime,
) -> dict[str, Any]:
    """The whole status. `adapters`: how many are wanted. `silent`: Ready pods that did not answer the
    operator.

    `problem`: what keeps the spec from being carried out at all.
    """
    meta = deployment.metadata
    alive = [pod for pod in pods if pod.alive]
    updated = [pod for pod in alive if pod.template_hash == template_hash(deployment)]
    troubles = pod_troubles(deployment, pods, silent)
    status = {
        "observedGeneration": meta.generation,
        "replicas": len(alive),
        "readyReplicas": sum(pod.ready for pod in alive),
        "updatedReplicas": len(updated),
        "adapters": adapters,
        "selector": naming.selector_text(naming.pod_selector(meta.name)),
        "endpoint": f"http://{meta.name}.{meta.namespace}.svc:{PUBLIC_PORT}",
        "exceptions": exceptions_of(troubles),
    }
    verdicts = _verdicts(deployment.spec.replicas, alive, updated, troubles, problem)
    status["conditions"] = set_conditions(
        before.get("conditions") or (), verdicts, generation=meta.generation, now=now
    )
    return status


def invalid_status(
    before: Mapping[str, Any], problem: Problem, *, generation: int, now: datetime
) -> dict[str, Any]:
    """The status of a spec that cannot be read: what runs goes on running, and the counts stay."""
    verdicts = {
        READY: Verdict(False, problem.reason, problem.message),
        PROGRESSING: Verdict(False, problem.reason, problem.message),
        DEGRADED: Verdict(True, problem.reason, problem.message),
    }
    conditions = set_conditions(before.get("conditions") or (), verdicts, generation=generation, now=now)
    return {**before, "observedGeneration": generation, "conditions": conditions}


def pod_troubles(
    deployment: NllbDeployment, pods: Sequence[PodView], silent: Sequence[PodView]
) -> list[Trouble]:
    """What is wrong with each pod, in the words that a person would search for."""
    troubles = []
    for pod in pods:
        if pod.reason is None or pod.deleting:
            continue
        reason, message = pod.reason, pod.message or pod.reason
        if reason == "Unschedulable" and deployment.spec.gpu.resource_name in message:
            reason = "InsufficientGPU"
        troubles.append(Trouble(pod.name, reason, message))
    known = {trouble.pod for trouble in troubles}
    mute = "the pod is Ready but its control port does not answer the operator"
    troubles += [Trouble(pod.name, "NotAnswering", mute) for pod in silent if pod.name not in known]
    return troubles


def _verdicts(
    desired: int,
    alive: Sequence[PodView],
    updated: Sequence[PodView],
    troubles: Sequence[Trouble],
    problem: Problem | None,
) -> dict[str, Verdict]:
    serving = sum(pod.ready for pod in alive)
    counts = f"{serving} of {desired} pods serve"
    worst = _worst(troubles)
    if problem is not None:
        text = f"{problem.message}; {counts}"
        return {
            READY: Verdict(False, problem.reason, text),
            PROGRESSING: Verdict(False, problem.reason, text),
            DEGRADED: Verdict(True, problem.reason, text),
        }
    degraded = Verdict(False, "AsExpected", "nothing is wrong")
    if worst is not None:
        degraded = Verdict(True, worst.reason, worst.message)
    if desired == 0 and not alive:
        idle = "spec.replicas is 0; scale it up to serve"
        return {
            READY: Verdict(False, "ScaledToZero", idle),
            PROGRESSING: Verdict(False, "Complete", idle),
            DEGRADED: degraded,
        }
    if len(alive) == len(updated) == desired == sum(pod.ready for pod in updated):
        return {
            READY: Verdict(True, "AllPodsReady", counts),
            PROGRESSING: Verdict(False, "Complete", counts),
            DEGRADED: degraded,
        }
    reason, text = _movement(desired, alive, updated, counts)
    if worst is not None and worst.reason != "NotAnswering":
        text = f"{text}; {worst.message}"
        return {
            READY: Verdict(False, worst.reason, text),
            PROGRESSING: Verdict(False, worst.reason, text),
            DEGRADED: degraded,
        }
    return {
        READY: Verdict(False, reason, text),
        PROGRESSING: Verdict(True, reason, text),
        DEGRADED: degraded,
    }


def _movement(
    desired: int, alive: Sequence[PodView], updated: Sequence[PodView], counts: str
) -> tuple[str, str]:
    if len(updated) < len(alive):
        return "RollingOut", f"{len(updated)} of {desired} pods run the current spec; {counts}"
    if len(alive) > desired:
        return "ScalingIn", f"{len(alive)} pods exist, {desired} are wanted"
    return "PodsStarting", counts


def _worst(troubles: Sequence[Trouble]) -> Trouble | None:
    """The commonest trouble, told by its first pod, with the number of pods that share it."""
    if not troubles:
        return None
    reason, number = Counter(trouble.reason for trouble in troubles).most_common(1)[0]
    first = min((trouble for trouble in troubles if trouble.reason == reason), key=lambda item: item.pod)
    others = f" (and {number - 1} more)" if number > 1 else ""
    return Trouble(first.pod, reason, f"pod {first.pod}{others}: {first.message}")
