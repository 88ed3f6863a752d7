"""`LocalBackend`: the Backend protocol on this machine. Reads and writes the store, runs pods and Services.

Knows which fleet an object belongs to, and nothing of how fleets are reconciled.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from nllb_operator.backends.base import (
    FleetKey,
    FleetSnapshot,
    Manifest,
    ObjectConflict,
    ObjectRef,
    PodView,
    deletion_cost_of,
)
from nllb_operator.backends.local.services import ServiceRouter, endpoint_of
from nllb_operator.backends.local.store import Key, ObjectStore, now, owner_uids
from nllb_operator.backends.local.workloads import LocalMachine, Workloads, is_ready
from nllb_operator.naming import (
    DELETION_COST_ANNOTATION,
    DEPLOYMENT_LABEL,
    LORA_ADAPTER,
    NLLB_DEPLOYMENT,
    POD_TEMPLATE_LABEL,
)
from nllb_operator.pod_container import ports_of

_EVENTS = 1000
_NO_PROBLEM = ("ContainerCreating", "Completed")


class LocalBackend:
    """A fleet's objects, pods and Services in the folder of a `LocalMachine`. Runs inside `running()`."""

    def __init__(self, local: LocalMachine) -> None:
        """Read the objects that the folder holds."""
        self.store = ObjectStore(local.folder / "objects")
        self.events: deque[dict[str, Any]] = deque(maxlen=_EVENTS)
        self._forget_readiness()
        self._workloads = Workloads(self.store, local)
        self._services = ServiceRouter(self.store)
        self._dirty: dict[FleetKey, None] = dict.fromkeys(self.keys())
        self._wake = asyncio.Event()
        self.store.listeners.append(self._on_change)

    def _forget_readiness(self) -> None:
        """No pod runs yet, so nothing is Ready; who waits for Ready must not see what was true before."""
        for body in (*self.store.objects(NLLB_DEPLOYMENT), *self.store.objects(LORA_ADAPTER)):
            status = body.get("status", {})
            for condition in status.get("conditions", ()):
                if condition["type"] == "Ready":
                    message = "the local operator has just started"
                    condition.update(status="Unknown", reason="Starting", message=message)
                    condition.update(lastTransitionTime=now())
            if "readyReplicas" in status:
                status["readyReplicas"] = 0
            if status:
                self.store.set_status(Key.of(body), status)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Future[Any]]:
        """Pods and Services run inside. Yields a future that ends only if one of the two tasks fails."""
        await self._services.converge()  # known endpoints answer from the first moment
        tasks = [asyncio.create_task(self._workloads.run()), asyncio.create_task(self._services.run())]
        both = asyncio.gather(*tasks)
        try:
            yield both
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            with contextlib.suppress(asyncio.CancelledError):
                await both

    # --- Backend: which fleets

    def keys(self) -> set[FleetKey]:
        """Every fleet that an NllbDeployment is or a LoraAdapter names."""
        bodies = [*self.store.objects(NLLB_DEPLOYMENT), *self.store.objects(LORA_ADAPTER)]
        return {key for body in bodies if (key := _fleet_of(body)) is not None}

    async def changes(self) -> AsyncIterator[FleetKey]:
        """Fleets of which something changed; at the start every fleet."""
        while True:
            while self._dirty:
                key = next(iter(self._dirty))
                del self._dirty[key]
                yield key
            self._wake.clear()
            await self._wake.wait()

    def _on_change(self, body: Manifest) -> None:
        key = _fleet_of(body)
        if key is not None:
            self._dirty[key] = None
            self._wake.set()

    # --- Backend: reads

    async def observe(self, key: FleetKey) -> FleetSnapshot:
        """The fleet now."""
        deployment = self.store.get(Key(NLLB_DEPLOYMENT, key.namespace, key.name))
        adapters = [
            body for body in self.store.objects(LORA_ADAPTER, key.namespace) if _fleet_of(body) == key
        ]
        children = [] if deployment is None else self.store.owned_by(deployment["metadata"]["uid"])
        sets = {child["metadata"]["uid"] for child in children if child["kind"] == "ReplicaSet"}
        pods = [pod for pod in self.store.objects("Pod", key.namespace) if owner_uids(pod) & sets]
        return FleetSnapshot(
            key=key,
            now=datetime.now(UTC),
            deployment=deployment,
            adapters=adapters,
            children=children,
            pods=[_pod_view(pod) for pod in pods],
        )

    # --- Backend: writes

    async def apply(self, manifest: Manifest) -> None:
        """Create or change an object; ObjectConflict if another owner has one of that name."""
        current = self.store.get(Key.of(manifest))
        if current is not None and owner_uids(current) != owner_uids(manifest):
            ref = Key.of(manifest)
            raise ObjectConflict(
                f"{ref.kind} {ref.namespace}/{ref.name} exists and does not belong to this fleet: "
                "delete it, or rename the NllbDeployment"
            )
        self.store.apply(manifest)

    async def delete(self, ref: ObjectRef) -> None:
        """Delete an object with what it owns."""
        self.store.delete(Key(ref.kind, ref.namespace, ref.name), ref.uid)

    async def set_deletion_cost(self, namespace: str, pod: PodView, cost: int) -> None:
        """Say which pod a scale-in takes first."""
        self.store.annotate(Key("Pod", namespace, pod.name), DELETION_COST_ANNOTATION, str(cost))

    async def write_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> None:
        """Replace an object's status. A fleet's endpoint is where its Service listens here."""
        if ref.kind == NLLB_DEPLOYMENT and "endpoint" in status:
            service = self.store.get(Key("Service", ref.namespace, ref.name))
            status = {**status, "endpoint": endpoint_of(service or {}) or ""}
        self.store.set_status(Key(ref.kind, ref.namespace, ref.name), status, ref.uid)

    async def emit_event(
        self, ref: ObjectRef, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Keep the event for `local get events`; the last thousand are kept, until the daemon ends."""
        self.events.append({"object": ref, "type": kind, "reason": reason, "message": message, "time": now()})


def _fleet_of(body: Mapping[str, Any]) -> FleetKey | None:
    metadata = body["metadata"]
    if body["kind"] == NLLB_DEPLOYMENT:
        return FleetKey(metadata["namespace"], metadata["name"])
    if body["kind"] == LORA_ADAPTER:
        return FleetKey(metadata["namespace"], body["spec"]["deploymentRef"]["name"])
    label = metadata.get("labels", {}).get(DEPLOYMENT_LABEL)
    return FleetKey(metadata["namespace"], label) if label else None


def _pod_view(pod: Manifest) -> PodView:
    metadata, status = pod["metadata"], pod.get("status", {})
    reason, message = _problem(status)
    ports, ip = ports_of(pod), status.get("podIP")
    (container,) = status.get("containerStatuses") or [{}]
    return PodView(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", "Pending"),
        ready=is_ready(pod),
        deleting="deletionTimestamp" in metadata,
        template_hash=metadata.get("labels", {}).get(POD_TEMPLATE_LABEL, ""),
        control_addr=f"{ip}:{ports['control']}" if ip and "control" in ports else None,
        public_addr=f"{ip}:{ports['http']}" if ip and "http" in ports else None,
        restarts=container.get("restartCount", 0),
        reason=reason,
        message=message,
        deletion_cost=deletion_cost_of(metadata.get("annotations", {})),
        created=datetime.fromisoformat(metadata["creationTimestamp"]),
    )


def _problem(status: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Why a pod does not run: its scheduling, else its container. (None, None): nothing is wrong."""
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition["reason"], condition["message"]
    for container in status.get("containerStatuses", ()):
        for state in container["state"].values():
            if state.get("reason") and state["reason"] not in _NO_PROBLEM:
                return state["reason"], state.get("message")
    return None, None
