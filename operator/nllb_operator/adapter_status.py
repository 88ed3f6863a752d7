"""The status of a LoraAdapter, from what its fleet's pods report.

Pure. Knows what Ready and Progressing mean for an adapter and how to say so in a sentence that a person can
act on. Must not know how any of it was observed or is written.

Ready the first time: every pod that is to hold the version holds it and serves, pods that cannot run apart.
From then on, in the same fleet: no pod that serves and is to hold it lacks it, and at least one does; so a
scale-out or a pod that restarts does not make a serving adapter unready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from nllb_operator.backends.base import PodView
from nllb_operator.conditions import PROGRESSING, READY, Trouble, Verdict, exceptions_of, set_conditions
from nllb_operator.resources import NllbDeployment
from nllb_operator.wanted import AdapterView, Problem, Version
from nllb_server.wire import SHORT_DIGEST, Inventory, InventoryAdapter


@dataclass(frozen=True)
class PodReport:
    """A pod and its inventory, None if it did not answer. `chosen`: it is to hold the adapter."""

    pod: PodView
    inventory: Inventory | None
    chosen: bool


def adapter_status(
    view: AdapterView, deployment: NllbDeployment, reports: Sequence[PodReport], now: datetime
) -> dict[str, Any]:
    """The whole status of an adapter whose fleet exists."""
    if view.problem is not None:
        return problem_status(view, view.problem, now)
    adapter, version, before = view.adapter, view.wanted, view.status
    facts = _Facts.gather(view, deployment, reports)
    ready = _ready(view, facts, deployment.metadata.name)
    status: dict[str, Any] = {
        "observedGeneration": adapter.metadata.generation,
        "servedName": adapter.served_name,
        **_identity(view, version),
        "desiredReplicas": facts.desired,
        "readyReplicas": facts.ready,
        "staleReplicas": facts.stale,
        "failedReplicas": len(facts.troubles),
        "fetchedFromOrigin": sum(entry.source == "origin" for entry in facts.entries),
        "fetchedFromPeers": sum(entry.source == "peer" for entry in facts.entries),
        "exceptions": exceptions_of(facts.troubles),
    }
    if facts.entries:
        status["bytes"] = max(entry.bytes for entry in facts.entries)
        ranks = [entry.rank for entry in facts.entries if entry.rank is not None]
        if ranks:
            status["rank"] = max(ranks)
    last = _last_ready(view, deployment.metadata.name, ready)
    if last is not None:
        status["lastReady"] = last
    verdicts = {READY: ready, PROGRESSING: _progressing(facts, ready)}
    status["conditions"] = set_conditions(
        before.get("conditions") or (), verdicts, generation=adapter.metadata.generation, now=now
    )
    return status


def problem_status(view: AdapterView, problem: Problem, now: datetime) -> dict[str, Any]:
    """The status of an adapter that no pod is told about. What was known of its content is kept."""
    generation = int(view.body["metadata"].get("generation", 1))
    kept = ("servedName", "digest", "digestSource", "digestUri", "version", "rank", "bytes", "lastReady")
    status = {key: view.status[key] for key in kept if key in view.status}
    verdicts = {
        READY: Verdict(False, problem.reason, problem.message),
        PROGRESSING: Verdict(False, problem.reason, problem.message),
    }
    status |= {"observedGeneration": generation, "readyReplicas": 0}
    status["conditions"] = set_conditions(
        view.status.get("conditions") or (), verdicts, generation=generation, now=now
    )
    return status


@dataclass(frozen=True)
class _Facts:
    """Counts over the pods.

    `serving`: Ready pods, whatever they hold. `broken`: pods that cannot run. `lacking`: serve, but without
    it. `unslotted`: hold its files, but it must be in a slot and is not. `entries`: of pods that hold it.
    """

    desired: int
    serving: int
    broken: int
    ready: int
    stale: int
    lacking: int
    unslotted: int
    entries: Sequence[InventoryAdapter]
    troubles: Sequence[Trouble]
    refused: Trouble | None

    @classmethod
    def gather(cls, view: AdapterView, deployment: NllbDeployment, reports: Sequence[PodReport]) -> _Facts:
        adapter, version = view.adapter, view.wanted
        in_slot = adapter.spec.pinned or view.active
        replicas = adapter.spec.replicas
        desired = deployment.spec.replicas if replicas is None else min(replicas, deployment.spec.replicas)
        ready = stale = lacking = serving = broken = unslotted = 0
        entries, troubles, refused = [], [], None
        for report in reports:
            inventory, usable = report.inventory, report.pod.ready and report.pod.alive
            serving += usable
            if not report.chosen:
                continue
            if inventory is None:
                lacking += usable
                broken += not usable and report.pod.reason is not None
                continue
            entry = _entry(inventory, adapter.served_name)
            if entry is not None and entry.digest == version.digest and version.held_by(inventory):
                entries.append(entry)
            if version.served_by(inventory, adapter.served_name, in_slot=in_slot):
                ready += usable
                continue
            lacking += usable
            stale += view.previous is not None and view.previous.held_by(inventory)
            unslotted += version.held_by(inventory)
            trouble = _trouble(version, inventory, adapter.served_name, report.pod)
            if trouble is not None:
                troubles.append(trouble[0])
                refused = trouble[0] if trouble[1] and refused is None else refused
        return cls(desired, serving, broken, ready, stale, lacking, unslotted, entries, troubles, refused)


def _entry(inventory: Inventory, name: str) -> InventoryAdapter | None:
    return next((entry for entry in inventory.adapters if entry.name == name), None)


def _trouble(version: Version, inventory: Inventory, name: str, pod: PodView) -> tuple[Trouble, bool] | None:
    """The pod's last failure with this version and whether its content is at fault."""
    entry = version.attempt_on(inventory, name)
    if entry is None or entry.error is None:
        return None
    return Trouble(pod.name, entry.error.reason, entry.error.message), entry.error.fault == "content"


def _ready(view: AdapterView, facts: _Facts, fleet: str) -> Verdict:
    counts = f"{facts.ready} of {facts.desired} pods serve it"
    if view.remark is not None:
        stays = "; the version that was Ready stays in use" if view.required else ""
        return Verdict(False, view.remark.reason, view.remark.message + stays)
    if facts.desired == 0:
        return Verdict(False, "NoPods", f"NllbDeployment {fleet} has 0 replicas; scale it up")
    if facts.ready >= facts.desired:
        return Verdict(True, "Resident", counts)
    if 0 < facts.ready == facts.desired - facts.broken:
        return Verdict(True, "Resident", f"{counts}; {facts.broken} cannot run")
    if view.required and facts.ready > 0 and facts.lacking == 0:
        return Verdict(True, "Resident", f"{counts}; the others are starting")
    stays = "; the previous version stays in use" if view.previous is not None else ""
    if facts.refused is not None:
        return Verdict(False, facts.refused.reason, f"{facts.refused.message}{stays}; {counts}")
    if facts.serving == 0:
        return Verdict(False, "NoReadyPods", f"no pod of NllbDeployment {fleet} is Ready; {counts}")
    if facts.troubles and not facts.entries:
        first = facts.troubles[0]
        return Verdict(False, first.reason, f"{first.message}{stays}; {counts}")
    if facts.unslotted and facts.ready + facts.unslotted >= facts.desired - facts.broken:
        slots = "pin fewer adapters or raise adapters.slots of the NllbDeployment"
        return Verdict(
            False, "WaitingForSlot", f"every slot is busy or pinned on some pods; {slots}; {counts}"
        )
    return Verdict(False, "Spreading", f"{counts}{stays}")


def _progressing(facts: _Facts, ready: Verdict) -> Verdict:
    if ready.holds and facts.ready >= facts.desired:
        return Verdict(False, "Complete", ready.message)
    if facts.refused is not None:
        return Verdict(False, facts.refused.reason, ready.message)
    if facts.desired == 0:
        return Verdict(False, ready.reason, ready.message)
    if facts.ready >= facts.desired:
        return Verdict(False, "Complete", ready.message)
    return Verdict(True, "Spreading", ready.message)


def _identity(view: AdapterView, version: Version) -> dict[str, Any]:
    """The digest, and where it is known from."""
    if version.digest is None:
        return {}
    known: dict[str, Any] = {"digest": version.digest, "version": version.digest[:SHORT_DIGEST]}
    if view.adapter.spec.source.sha256 == version.digest:
        return {**known, "digestSource": "Spec"}
    return {**known, "digestSource": "Observed", "digestUri": version.uri}


def _last_ready(view: AdapterView, fleet: str, ready: Verdict) -> dict[str, Any] | None:
    """The version that was Ready last and where; it changes only when another becomes Ready."""
    version = view.wanted
    last: dict[str, Any] | None = view.status.get("lastReady")
    if not ready.holds or version.digest is None:
        return last
    if last is not None and (last.get("deployment"), last.get("digest")) == (fleet, version.digest):
        return last
    return {
        "deployment": fleet,
        "digest": version.digest,
        "uri": version.uri,
        "generation": version.generation,
    }
