"""One look at one fleet: observe, decide, act, report. The order of effects, and nothing of the decisions.

Knows the Backend, the pods' contact and the pure core. Level-triggered and repeatable at any point: it holds
no state that a restart would miss. Must not know queues, workers or where a fleet lives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nllb_operator.adapter_status import PodReport, adapter_status, problem_status
from nllb_operator.backends.base import Backend, FleetKey, FleetSnapshot, Manifest, ObjectRef, ObjectRefused
from nllb_operator.conditions import PROGRESSING, announcement, condition_of
from nllb_operator.deployment_status import deployment_status, invalid_status
from nllb_operator.drift import differs, rescaled
from nllb_operator.manifests import desired_objects, template_hash
from nllb_operator.pod_client import PodClient
from nllb_operator.pod_contact import FleetContact
from nllb_operator.promotion import PodObservation, PromotionPlan, plan_promotion
from nllb_operator.resources import InvalidResource, NllbDeployment
from nllb_operator.rollout import ReplicaSetView, RolloutPlan, plan_deletion_costs, plan_rollout
from nllb_operator.settings import OperatorSettings
from nllb_operator.wanted import (
    AdapterView,
    Problem,
    adopt_digests,
    resolve_adapters,
    source_problem,
    standalone_set,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Outcome:
    """`busy`: something is on its way, look again soon. `changed`: this look found something new."""

    busy: bool
    changed: bool


class FleetReconciler:
    """Reconciles fleets, one call per fleet at a time. Keeps only what pods said and were told."""

    def __init__(self, backend: Backend, client: PodClient, settings: OperatorSettings) -> None:
        """`client` must be open for as long as the reconciler is used."""
        self._backend = backend
        self._client = client
        self._settings = settings
        self._contacts: dict[FleetKey, FleetContact] = {}

    async def reconcile(self, key: FleetKey) -> Outcome:
        """Bring the fleet one step closer to what its objects say. Raises BackendUnavailable."""
        snapshot = await self._backend.observe(key)
        body = snapshot.deployment
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._contacts.pop(key, None)
            return await self._without_deployment(snapshot)
        try:
            deployment = NllbDeployment.from_body(body)
        except InvalidResource as error:
            meta = body["metadata"]
            status = invalid_status(
                body.get("status") or {},
                Problem("InvalidSpec", str(error)),
                generation=int(meta.get("generation", 1)),
                now=snapshot.now,
            )
            return Outcome(busy=False, changed=await self._report(body, status))
        return await self._fleet(snapshot, body, deployment)

    async def _without_deployment(self, snapshot: FleetSnapshot) -> Outcome:
        """Adapters that name a fleet which is not there."""
        namespace, name = snapshot.key
        problem = Problem(
            "DeploymentNotFound",
            f"there is no NllbDeployment {name!r} in namespace {namespace!r}; create it, or change"
            " spec.deploymentRef.name",
        )
        changed = False
        for body in snapshot.adapters:
            if not body["metadata"].get("deletionTimestamp"):
                status = problem_status(AdapterView(body, None), problem, snapshot.now)
                changed |= await self._report(body, status)
        return Outcome(busy=False, changed=changed)

    async def _fleet(self, snapshot: FleetSnapshot, body: Manifest, deployment: NllbDeployment) -> Outcome:
        key = snapshot.key
        contact = self._contacts.setdefault(key, FleetContact(key.name, self._client))
        observed = await contact.poll(snapshot.pods)
        views = adopt_digests(
            resolve_adapters(deployment, snapshot.adapters, allow_file_uris=self._settings.allow_file_uris),
            [pod.inventory for pod in observed],
        )
        wanted = [view for view in views if view.problem is None]
        plan = plan_promotion(wanted, observed, deployment.spec.adapters.fanout)
        observed = await contact.tell(observed, plan.entries)

        problem = source_problem(
            deployment, deployment.spec.model.uri, allow_file_uris=self._settings.allow_file_uris
        )
        if problem is None:
            problem = await self._objects(snapshot, deployment, views, observed)

        changed = False
        statuses = []
        for view in views:
            reports = _reports(view, snapshot, observed, plan)
            status = adapter_status(view, deployment, reports, snapshot.now)
            statuses.append(status)
            changed |= await self._report(view.body, status)
        status = deployment_status(
            deployment,
            body.get("status") or {},
            snapshot.pods,
            adapters=len(wanted),
            silent=contact.silent(snapshot.pods),
            problem=problem,
            now=snapshot.now,
        )
        statuses.append(status)
        changed |= await self._report(body, status)
        return Outcome(busy=any(_is_progressing(status) for status in statuses), changed=changed)

    async def _objects(
        self,
        snapshot: FleetSnapshot,
        deployment: NllbDeployment,
        views: Sequence[AdapterView],
        observed: Sequence[PodObservation],
    ) -> Problem | None:
        """Make the children what they should be; a name that belongs to somebody else is the problem."""
        current = template_hash(deployment)
        sets = [child for child in snapshot.children if child["kind"] == "ReplicaSet"]
        set_views = [ReplicaSetView.of(child) for child in sets]
        rollout = plan_rollout(deployment.spec.replicas, current, set_views, snapshot.pods)
        await self._mark_victims(snapshot, rollout, observed)
        wanted = standalone_set(deployment.metadata.name, views)
        desired = desired_objects(deployment, wanted, rollout.replicas[current])
        finished = [child for child, item in zip(sets, set_views, strict=True) if item in rollout.finished]
        for child, item in zip(sets, set_views, strict=True):
            number = rollout.replicas.get(item.template_hash)
            if item.template_hash != current and number is not None and number != item.replicas:
                desired.append(rescaled(child, number))
        return await self._converge(snapshot, desired, finished)

    async def _mark_victims(
        self, snapshot: FleetSnapshot, rollout: RolloutPlan, observed: Sequence[PodObservation]
    ) -> None:
        """Say which pods a scale-in is to take, before it happens."""
        inventories = {pod.uid: pod.inventory for pod in observed}
        costs = plan_deletion_costs(rollout.replicas, snapshot.pods, inventories)
        for pod in snapshot.pods:
            if pod.uid in costs:
                await self._backend.set_deletion_cost(snapshot.key.namespace, pod, costs[pod.uid])

    async def _converge(
        self, snapshot: FleetSnapshot, desired: Sequence[Manifest], finished: Sequence[Manifest]
    ) -> Problem | None:
        problem = None
        live = {_name(child): child for child in snapshot.children}
        for manifest in desired:
            have = live.get(_name(manifest))
            if have is not None and not differs(manifest, have):
                continue
            try:
                await self._backend.apply(manifest)
            except ObjectRefused as error:
                problem = Problem(error.reason, str(error))
        names = {_name(manifest) for manifest in desired}
        for child in snapshot.children:
            kept = child["kind"] == "ReplicaSet" or _name(child) in names
            if child in finished or not kept:
                try:
                    await self._backend.delete(ObjectRef.of(child))
                except ObjectRefused as error:
                    problem = Problem(error.reason, str(error))
        return problem

    async def _report(self, body: Manifest, status: Mapping[str, Any]) -> bool:
        """Write the status if it differs from the one that is there; whether it did."""
        before = body.get("status") or {}
        if dict(before) == dict(status):
            return False
        ref = ObjectRef.of(body)
        await self._backend.write_status(ref, status)
        news = announcement(before, status)
        if news is not None:
            log.info("%s %s/%s: %s: %s", ref.kind, ref.namespace, ref.name, *news[1:])
            await self._backend.emit_event(ref, *news)
        return True


def _name(manifest: Manifest) -> tuple[str, str]:
    return manifest["kind"], manifest["metadata"]["name"]


def _is_progressing(status: Mapping[str, Any]) -> bool:
    condition = condition_of(status, PROGRESSING)
    return condition is not None and condition["status"] == "True"


def _reports(
    view: AdapterView, snapshot: FleetSnapshot, observed: Sequence[PodObservation], plan: PromotionPlan
) -> list[PodReport]:
    """Every pod that exists, what it holds, and whether it is to hold this adapter."""
    if view.problem is not None:
        return []
    inventories = {pod.uid: pod.inventory for pod in observed}
    chosen = plan.chosen[view.wanted.uid]
    everywhere = view.adapter.spec.replicas is None
    return [
        PodReport(
            pod, inventories.get(pod.uid), pod.uid in chosen or (everywhere and pod.uid not in inventories)
        )
        for pod in snapshot.pods
        if pod.alive
    ]
