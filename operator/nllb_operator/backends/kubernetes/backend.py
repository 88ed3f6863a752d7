"""`KubernetesBackend`: the Backend protocol on an API server.

Knows how a fleet's objects hang together there: owners, labels and the rules by which an object is ours to
write. Must not know kopf (events are handed in by `saw`), or any decision about a fleet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from nllb_operator.backends.base import (
    BackendUnavailable,
    FleetKey,
    FleetSnapshot,
    Manifest,
    ObjectConflict,
    ObjectRef,
    PodView,
)
from nllb_operator.backends.kubernetes.api import KINDS, ApiServer, Refusal, refused
from nllb_operator.backends.kubernetes.cache import ObjectCache, Place, fleet_of, owner_uids
from nllb_operator.backends.kubernetes.pod_view import pod_view
from nllb_operator.naming import (
    API_VERSION,
    DELETION_COST_ANNOTATION,
    DEPLOYMENT_LABEL,
    FIELD_MANAGER,
    LORA_ADAPTER,
    NLLB_DEPLOYMENT,
)

log = logging.getLogger(__name__)

REFRESH_SECONDS = 300.0
"""How often everything is listed anew, for deletions that a watch has missed."""


class KubernetesBackend:
    """Objects of fleets in `namespaces` (empty: in all). `refresh` once before the first use."""

    def __init__(self, api: ApiServer, namespaces: tuple[str, ...]) -> None:
        """Nothing is known before `refresh`."""
        self._api = api
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._cache = ObjectCache()
        self._changed: asyncio.Queue[FleetKey] = asyncio.Queue()

    # --- what the API server says

    async def refresh(self) -> None:
        """List everything. Raises BackendUnavailable."""
        for kind, where in KINDS.items():
            selector = None if where.api_version == API_VERSION else DEPLOYMENT_LABEL
            before = self._cache.places()
            found = [
                body
                for namespace in self._namespaces
                for body in await self._api.list(kind, namespace, selector)
            ]
            self._mark(self._cache.replace(kind, found, before))

    async def keep_fresh(self) -> None:
        """Refresh now and then, for ever."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except BackendUnavailable as error:
                log.warning("the periodic list failed and is repeated: %s", error)

    def saw(self, event: str | None, body: Manifest) -> None:
        """A watch event: DELETED, or any other type for an object that is there."""
        self._mark(self._cache.remove(body) if event == "DELETED" else self._cache.put(body))

    def _mark(self, keys: set[FleetKey]) -> None:
        for key in keys:
            self._changed.put_nowait(key)

    # --- Backend: reads

    def keys(self) -> set[FleetKey]:
        """Every fleet that an NllbDeployment is or a LoraAdapter names."""
        return self._cache.fleets()

    async def changes(self) -> AsyncIterator[FleetKey]:
        """Fleets of which something changed."""
        while True:
            yield await self._changed.get()

    async def observe(self, key: FleetKey) -> FleetSnapshot:
        """The fleet as the cache has it; own writes are in it."""
        objects = self._cache.of_fleet(key)
        deployment = self._cache.get(Place(NLLB_DEPLOYMENT, key.namespace, key.name))
        uid = deployment["metadata"]["uid"] if deployment is not None else None
        children = [
            body
            for body in objects
            if body["kind"] not in (NLLB_DEPLOYMENT, LORA_ADAPTER, "Pod") and uid in owner_uids(body)
        ]
        sets = {body["metadata"]["uid"] for body in children if body["kind"] == "ReplicaSet"}
        return FleetSnapshot(
            key=key,
            now=datetime.now(UTC),
            deployment=deployment,
            adapters=[body for body in objects if body["kind"] == LORA_ADAPTER],
            children=[body for body in children if not body["metadata"].get("deletionTimestamp")],
            pods=[pod_view(body) for body in objects if body["kind"] == "Pod" and owner_uids(body) & sets],
        )

    # --- Backend: writes

    async def apply(self, manifest: Manifest) -> None:
        """Server-side apply, after a look that the object is absent or belongs to this very fleet."""
        place = Place.of(manifest)
        live = self._cache.get(place)
        if live is None:
            live = await self._api.get(ObjectRef.of(manifest))
        if live is not None and not owner_uids(manifest) & owner_uids(live):
            raise _not_ours(manifest, live)
        answer = await self._api.apply(manifest)
        if isinstance(answer, Refusal):
            raise refused(ObjectRef.of(manifest), answer)
        self._cache.put(answer)

    async def delete(self, ref: ObjectRef) -> None:
        """Delete by uid; the event that it is gone follows."""
        answer = await self._api.delete(ref)
        if isinstance(answer, Refusal) and answer.status not in (404, 409):
            raise refused(ref, answer)

    async def set_deletion_cost(self, namespace: str, pod: PodView, cost: int) -> None:
        """Annotate the pod."""
        ref = ObjectRef("v1", "Pod", namespace, pod.name, pod.uid)
        answer = await self._api.annotate(ref, {DELETION_COST_ANNOTATION: str(cost)})
        if not isinstance(answer, Refusal):
            self._cache.put(answer)
        elif answer.status not in (404, 409):
            raise BackendUnavailable(f"cannot annotate pod {namespace}/{pod.name}: {answer.message}")

    async def write_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> None:
        """Apply the whole status; the uid in it keeps a namesake safe."""
        meta = {"name": ref.name, "namespace": ref.namespace, "uid": ref.uid}
        manifest = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "metadata": meta,
            "status": dict(status),
        }
        answer = await self._api.apply(manifest, subresource="status")
        if not isinstance(answer, Refusal):
            self._cache.put(answer)
        elif answer.status not in (404, 409):
            raise BackendUnavailable(f"cannot write the status of {ref.kind} {ref.name}: {answer.message}")

    async def emit_event(
        self, ref: ObjectRef, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Post an event about the object; a failure is logged and nothing more."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{ref.name}.", "namespace": ref.namespace},
            "involvedObject": {
                "apiVersion": ref.api_version,
                "kind": ref.kind,
                "namespace": ref.namespace,
                "name": ref.name,
                "uid": ref.uid,
            },
            "type": kind,
            "reason": reason,
            "message": message,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            answer = await self._api.create_event(ref.namespace, event)
        except BackendUnavailable as error:
            log.warning("an event was lost: %s", error)
            return
        if isinstance(answer, Refusal):
            log.warning("an event was refused: %s", answer.message)


def _not_ours(manifest: Manifest, live: Manifest) -> Exception:
    """Why an object may not be written: its fleet is being removed, or it is somebody else's."""
    ref = ObjectRef.of(manifest)
    owners = live["metadata"].get("ownerReferences") or ()
    if live["metadata"].get("deletionTimestamp") or (
        fleet_of(live) == fleet_of(manifest) and any(owner["kind"] == NLLB_DEPLOYMENT for owner in owners)
    ):
        return BackendUnavailable(
            f"{ref.kind} {ref.namespace}/{ref.name} of an earlier NllbDeployment of that name is still being"
            " removed"
        )
    return ObjectConflict(
        f"{ref.kind} {ref.namespace}/{ref.name} exists and does not belong to this fleet: delete it, or"
        " rename the NllbDeployment"
    )
