"""A PodView from a Pod object of the API server.

Pure. Knows where Kubernetes says why a pod does not run. Must not know what the core does about it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nllb_operator.backends.base import PodView, deletion_cost_of
from nllb_operator.naming import POD_TEMPLATE_LABEL

_STARTING = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that pass by themselves."""

_CRASHING = "CrashLoopBackOff"
"""The reason of a container that failed, whether it waits for its next start or has just been started."""

_LOG_PREFIX = re.compile(r"\d{4}-\d\d-\d\d[ T]\S+ [A-Z]+ \S+ ")
"""Time, level and logger before what a line says: with the time, each attempt would be told anew."""


def pod_view(pod: Mapping[str, Any]) -> PodView:
    """Read a Pod."""
    meta, status = pod["metadata"], pod.get("status") or {}
    reason, message = _trouble(status)
    created = meta.get("creationTimestamp")
    return PodView(
        name=meta["name"],
        uid=meta["uid"],
        phase=status.get("phase") or "Pending",
        ready=_condition(status, "Ready").get("status") == "True",
        deleting=bool(meta.get("deletionTimestamp")),
        template_hash=(meta.get("labels") or {}).get(POD_TEMPLATE_LABEL, ""),
        control_addr=_address(pod, "control"),
        public_addr=_address(pod, "http"),
        restarts=sum(item.get("restartCount", 0) for item in status.get("containerStatuses") or ()),
        reason=reason,
        message=message,
        deletion_cost=deletion_cost_of(meta.get("annotations") or {}),
        created=datetime.fromisoformat(created) if created else None,
    )


def _address(pod: Mapping[str, Any], port_name: str) -> str | None:
    """`host:port` of a named port, None while the pod has no IP."""
    host = (pod.get("status") or {}).get("podIP")
    for container in pod["spec"]["containers"]:
        for port in container.get("ports") or ():
            if host and port.get("name") == port_name:
                return (
                    f"[{host}]:{port['containerPort']}" if ":" in host else f"{host}:{port['containerPort']}"
                )
    return None


def _condition(status: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return next((item for item in status.get("conditions") or () if item["type"] == name), {})


def _trouble(status: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Why the pod does not run: not scheduled, evicted, or a container that waits for a bad reason."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return scheduled.get("reason") or "Unschedulable", scheduled.get("message")
    if status.get("phase") == "Failed":
        return status.get("reason") or "PodFailed", status.get("message")
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] not in _STARTING | {_CRASHING}:
            return waiting["reason"], waiting.get("message")
        if not container.get("ready") and (end := _last_end(container)):
            return _CRASHING, end
    return None, None


def _last_end(container: Mapping[str, Any]) -> str | None:
    """How the container failed last, None if it did not: its exit code and the last line that it logged.

    The kubelet's own message about a crashing container tells how long it waits, not why.
    """
    ends = ((container.get(key) or {}).get("terminated") for key in ("state", "lastState"))
    end = next((item for item in ends if item), None)
    if end is None or end.get("exitCode") == 0:
        return None
    text = f"the container ended with code {end.get('exitCode')}"
    if end.get("reason") not in (None, "Error"):
        text += f" ({end['reason']})"
    lines = (end.get("message") or "").strip().splitlines()
    return f"{text}: {_LOG_PREFIX.sub('', lines[-1])}" if lines else text
