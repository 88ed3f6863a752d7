"""What is known of a pod that runs as a local process, and the same as the `status` of a Pod object.

Pure values. Must not know how the process is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from nllb_operator.pod_container import Manifest, container_of, ports_of

Phase = Literal["Pending", "Running", "Succeeded", "Failed"]
ContainerState = Literal["waiting", "running", "terminated"]


@dataclass(frozen=True)
class PodStatus:
    """State of the pod and of its one container. Times are seconds since 1970; `reason` is CamelCase."""

    ip: str
    phase: Phase = "Pending"
    ready: bool = False
    state: ContainerState = "waiting"
    reason: str | None = "ContainerCreating"
    message: str | None = None
    restarts: int = 0
    exit_code: int | None = None  # of the last run that ended; negative: killed by that signal
    started_at: float | None = None
    finished_at: float | None = None

    def address(self, pod: Manifest, port: str) -> str | None:
        """`host:port` of the container's named port, while the process runs."""
        number = ports_of(pod).get(port)
        return f"{self.ip}:{number}" if self.state == "running" and number is not None else None

    def as_manifest(self, pod: Manifest) -> dict[str, Any]:
        """The `status` stanza of the Pod object."""
        ready = "True" if self.ready else "False"
        problem = {} if self.ready else {"reason": "ContainersNotReady"}
        container = container_of(pod)
        return {
            "phase": self.phase,
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}],
            "hostIP": self.ip,
            "conditions": [
                {"type": "PodScheduled", "status": "True"},
                {"type": "Initialized", "status": "True"},
                {"type": "ContainersReady", "status": ready, **problem},
                {"type": "Ready", "status": ready, **problem},
            ],
            "containerStatuses": [
                {
                    "name": container["name"],
                    "image": container.get("image", ""),
                    "imageID": "",
                    "ready": self.ready,
                    "started": self.state == "running",
                    "restartCount": self.restarts,
                    "state": self._state(),
                    "lastState": {"terminated": self._terminated()} if self._ran_before() else {},
                }
            ],
        }

    def _ran_before(self) -> bool:
        return self.exit_code is not None and self.state != "terminated"

    def _state(self) -> dict[str, Any]:
        if self.state == "running":
            return {"running": {"startedAt": timestamp(self.started_at)}}
        if self.state == "terminated":
            return {"terminated": self._terminated()}
        return {"waiting": {key: value for key, value in self._why().items() if value}}

    def _why(self) -> dict[str, str | None]:
        return {"reason": self.reason, "message": self.message}

    def _terminated(self) -> dict[str, Any]:
        code = self.exit_code or 0
        why = self._why()
        if self.state != "terminated":  # the last run; its words are kept until the next one starts
            words = self.message if self.reason == "CrashLoopBackOff" else None
            why = {"reason": "Completed" if code == 0 else "Error", "message": words}
        return {
            "exitCode": code if code >= 0 else 128 - code,
            **({"signal": -code} if code < 0 else {}),
            **{key: value for key, value in why.items() if value},
            "startedAt": timestamp(self.started_at),
            "finishedAt": timestamp(self.finished_at),
        }


def timestamp(seconds: float | None) -> str | None:
    """RFC 3339 with whole seconds in UTC, as Kubernetes writes times."""
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
