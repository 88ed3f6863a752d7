"""What the reconcile core needs from the place where a fleet lives: the `Backend` protocol and its snapshots.

Knows shapes only. Must not know Kubernetes' client, processes, HTTP to pods, or any decision.

An implementation owns what Kubernetes owns: it keeps objects, runs ReplicaSets (the number of pods, the
cheapest deletion-cost first), sends a Service's traffic to Ready pods and removes children whose owner is
gone.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from nllb_operator.naming import DELETION_COST_ANNOTATION

Manifest = dict[str, Any]
"""An object in the shape of the Kubernetes API: apiVersion, kind, metadata, …"""


def deletion_cost_of(annotations: Mapping[str, str]) -> int | None:
    """The value of DELETION_COST_ANNOTATION; None if it is absent or no whole number."""
    text = annotations.get(DELETION_COST_ANNOTATION, "")
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,10}", text) else None


class FleetKey(NamedTuple):
    """A fleet: what one reconcile looks at. Its NllbDeployment may be missing."""

    namespace: str
    name: str


class ObjectRef(NamedTuple):
    """An object by kind and name. `uid`, if given, must match: a namesake is never touched."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str | None = None

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> ObjectRef:
        """The reference of a manifest, with its uid if it has one."""
        meta = manifest["metadata"]
        return cls(manifest["apiVersion"], manifest["kind"], meta["namespace"], meta["name"], meta.get("uid"))


@dataclass(frozen=True)
class PodView:
    """What the core sees of a pod.

    Addresses are `host:port`, None until the pod has an IP. `template_hash` is the label POD_TEMPLATE_LABEL.
    `reason` and `message` say why a pod does not run (Unschedulable, ImagePullBackOff, CrashLoopBackOff, …)
    and are None while nothing is wrong. `deletion_cost` is the annotation's value, None if absent.
    """

    name: str
    uid: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    ready: bool
    deleting: bool
    template_hash: str
    control_addr: str | None = None
    public_addr: str | None = None
    restarts: int = 0
    reason: str | None = None
    message: str | None = None
    deletion_cost: int | None = None
    created: datetime | None = None

    @property
    def alive(self) -> bool:
        """Neither on its way out nor finished: counts towards a ReplicaSet's replicas."""
        return not self.deleting and self.phase not in ("Succeeded", "Failed")


@dataclass(frozen=True)
class FleetSnapshot:
    """Everything about a fleet that the place where it lives knows, at one moment.

    `deployment`: the NllbDeployment's body, None if there is none. `adapters`: bodies of the LoraAdapters of
    the namespace whose `spec.deploymentRef.name` is the fleet's. `children`: objects owned by this very
    NllbDeployment (by uid): ReplicaSets with their status, Services, ConfigMap, ServiceAccount,
    PodDisruptionBudget. `pods`: pods owned by these ReplicaSets, those that are being deleted included.
    `now`: UTC.
    """

    key: FleetKey
    now: datetime
    deployment: Manifest | None = None
    adapters: Sequence[Manifest] = ()
    children: Sequence[Manifest] = ()
    pods: Sequence[PodView] = field(default=())


class ObjectRefused(Exception):
    """An object cannot be written as it is; the message is for the user, under the class's `reason`."""

    reason: ClassVar[str]


class ObjectConflict(ObjectRefused):
    """An object of that name belongs to somebody else; the message names it and says what to do."""

    reason = "NameConflict"


class ObjectRejected(ObjectRefused):
    """The object breaks a rule of the place where the fleet lives; the message says which."""

    reason = "ObjectRejected"


class ObjectForbidden(ObjectRefused):
    """The operator may not do this, by its rights or by a quota; the message says what it lacks."""

    reason = "Forbidden"


class BackendUnavailable(Exception):
    """The place where the fleet lives did not answer, or refused; the reconcile is repeated later."""


class Backend(Protocol):
    """Reads and writes of the reconcile core. Every write is idempotent; a repeated one changes nothing.

    `apply` and `delete` raise `ObjectRefused`; all calls but `emit_event` may raise `BackendUnavailable`.
    """

    def keys(self) -> set[FleetKey]:
        """Every fleet to reconcile: of NllbDeployments and of LoraAdapters' references. For the resync."""
        ...

    def changes(self) -> AsyncIterator[FleetKey]:
        """Keys of fleets of which anything has changed; endless. May repeat itself, may not miss one."""
        ...

    async def observe(self, key: FleetKey) -> FleetSnapshot:
        """The fleet now. Own writes are visible in it."""
        ...

    async def apply(self, manifest: Manifest) -> None:
        """Create the object, or set the fields that `manifest` names. Never adopts a foreign one."""
        ...

    async def delete(self, ref: ObjectRef) -> None:
        """Delete an object, with what it owns. Its absence is success."""
        ...

    async def set_deletion_cost(self, namespace: str, pod: PodView, cost: int) -> None:
        """Set the pod's DELETION_COST_ANNOTATION, ahead of a scale-in. A pod that is gone is success."""
        ...

    async def write_status(self, ref: ObjectRef, status: Mapping[str, Any]) -> None:
        """Replace the whole status of an NllbDeployment or a LoraAdapter. Its absence is success."""
        ...

    async def emit_event(
        self, ref: ObjectRef, kind: Literal["Normal", "Warning"], reason: str, message: str
    ) -> None:
        """Tell the user about a transition of the object. Best effort: never raises."""
        ...
