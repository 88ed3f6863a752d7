"""How many pods each ReplicaSet may have now: scaling, and the way from an old pod template to a new one.

Pure. maxSurge 0, maxUnavailable 1: a GPU fleet has no spare card, so an old pod goes first, and its
replacement is asked for only when the old one is gone and has given back its GPU. Must not know what a
template contains, or how a number reaches a ReplicaSet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nllb_operator.backends.base import Manifest, PodView
from nllb_operator.naming import POD_TEMPLATE_LABEL
from nllb_server.wire import Inventory

MAX_UNAVAILABLE = 1

VICTIM_COST = -100
"""Deletion cost of a pod that is to go; the others have none, which counts as 0."""


@dataclass(frozen=True)
class ReplicaSetView:
    """A ReplicaSet: its template, and the number of pods it is told to have."""

    template_hash: str
    name: str
    replicas: int

    @classmethod
    def of(cls, manifest: Manifest) -> ReplicaSetView:
        """Read the manifest of a ReplicaSet."""
        meta = manifest["metadata"]
        return cls(meta["labels"][POD_TEMPLATE_LABEL], meta["name"], int(manifest["spec"].get("replicas", 1)))


@dataclass(frozen=True)
class RolloutPlan:
    """Pods per template hash, for every ReplicaSet that stays; `finished` are those to delete."""

    replicas: Mapping[str, int]
    finished: Sequence[ReplicaSetView] = ()

    def total(self) -> int:
        """Pods asked for, over all templates."""
        return sum(self.replicas.values())


def plan_rollout(
    desired: int, current: str, sets: Sequence[ReplicaSetView], pods: Sequence[PodView]
) -> RolloutPlan:
    """The next step towards `desired` pods of the template `current`; the same inputs give the same step.

    Never more than `desired` pods at a time, those that are being deleted included while a rollout runs.
    Never fewer than `desired` - 1 Ready pods because of the rollout. Pods that are not Ready are replaced
    first.
    """
    old = {item.template_hash: item.replicas for item in sets if item.template_hash != current}
    present = {pod.template_hash for pod in pods}
    finished = [
        item
        for item in sets
        if item.template_hash != current and item.replicas == 0 and item.template_hash not in present
    ]
    for item in finished:
        del old[item.template_hash]
    if not old:
        return RolloutPlan({current: desired}, finished)

    told = next((item.replicas for item in sets if item.template_hash == current), 0)
    kept = _shrink_old(desired, old, told, pods)
    occupied = sum(max(number, _count(pods, template)) for template, number in kept.items())
    occupied += sum(pod.template_hash == current and pod.deleting for pod in pods)
    new = max(desired - occupied, min(told, desired - sum(kept.values())), 0)
    return RolloutPlan({current: new, **kept}, finished)


def _shrink_old(desired: int, old: Mapping[str, int], told: int, pods: Sequence[PodView]) -> dict[str, int]:
    """The old ReplicaSets' numbers after this step: without pods that are not Ready, less one that may go.

    The numbers follow from the pods that are seen, and never rise: a pod that still seems to be there
    although its ReplicaSet was told to drop it counts once, and one that vanished is not made anew from an
    old template.
    """
    ready = [pod.template_hash for pod in pods if pod.alive and pod.ready]
    kept = {template: ready.count(template) for template in sorted(old)}
    spare = max(len(ready) - (desired - MAX_UNAVAILABLE), 0)
    excess = sum(kept.values()) + told - desired
    leave = min(max(excess, 1), spare)
    for template in kept:
        step = min(leave, kept[template])
        kept[template] = min(kept[template] - step, old[template])
        leave -= step
    return kept


def plan_deletion_costs(
    replicas: Mapping[str, int], pods: Sequence[PodView], inventories: Mapping[str, Inventory]
) -> dict[str, int]:
    """Deletion costs to set before ReplicaSets shrink to `replicas`: pod UID → cost, only where it changes.

    Pods go first that are not Ready, then those without adapters that nobody else holds, with the fewest
    rows in flight, and the youngest. `inventories` by pod UID; a pod that did not answer has nothing to
    lose.
    """
    holders = Counter(digest for inventory in inventories.values() for digest in set(inventory.stored))
    costs: dict[str, int] = {}
    for template, number in replicas.items():
        members = [pod for pod in pods if pod.alive and pod.template_hash == template]
        surplus = len(members) - number
        if surplus <= 0:
            continue
        members.sort(key=lambda pod: _worth(pod, inventories.get(pod.uid), holders))
        for place, pod in enumerate(members):
            cost = VICTIM_COST if place < surplus else 0
            if (pod.deletion_cost or 0) != cost:
                costs[pod.uid] = cost
    return costs


def _worth(
    pod: PodView, inventory: Inventory | None, holders: Mapping[str, int]
) -> tuple[bool, int, int, float, str]:
    """Sorts the pod that is missed least first."""
    unique = refs = 0
    if inventory is not None:
        unique = sum(holders[digest] == 1 for digest in set(inventory.stored))
        refs = sum(adapter.refs for adapter in inventory.adapters)
    age = -pod.created.timestamp() if pod.created else 0.0
    return (pod.ready, unique, refs, age, pod.uid)


def _count(pods: Sequence[PodView], template: str) -> int:
    """Pods of a template that still hold their GPU: all that exist and have not ended."""
    return sum(pod.template_hash == template and pod.phase not in ("Succeeded", "Failed") for pod in pods)
