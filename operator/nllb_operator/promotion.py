"""Who fetches which adapter from whom: `plan_promotion`, from what is wanted and what pods report.

Pure, and level-triggered: the plan is made anew from inventories each time, and planning twice changes
nothing. An adapter that nobody holds is fetched from its origin by exactly one pod. Holders then serve the
others, each at most `fanout` at a time, so holders multiply by up to 1 + fanout per round. A fault of the
content stops the spread; a fault of a pod moves the work to another pod. Pods repeat a failed attempt
themselves, with pauses, as long as their sources stay the same. Must not know HTTP, objects or clocks.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from nllb_operator.wanted import AdapterView, Version
from nllb_server.wire import Inventory, Source, WantedAdapter


@dataclass(frozen=True)
class PodObservation:
    """A pod that has answered lately.

    `inventory`: its last. `addr`: its control port, host:port. `leaving`: it is being deleted or drains, so
    it gets nothing new. `told`: what it was last told since its start, by LoraAdapter uid.
    """

    uid: str
    addr: str
    inventory: Inventory
    ready: bool = True
    leaving: bool = False
    told: Mapping[str, WantedAdapter] = field(default_factory=dict)


@dataclass(frozen=True)
class PromotionPlan:
    """What to tell each pod, by its uid. `chosen`: the pods that are to hold each adapter, by its uid."""

    entries: Mapping[str, Sequence[WantedAdapter]]
    chosen: Mapping[str, frozenset[str]]


_WAIT = Source(kind="wait")
_ORIGIN = Source(kind="origin")


def plan_promotion(
    wanted: Sequence[AdapterView], observed: Sequence[PodObservation], fanout: int
) -> PromotionPlan:
    """Plan the next step for every adapter of `wanted` (views without a problem) on every observed pod.

    Pods that wait for a version are told the previous one meanwhile, so that a pod which starts in between
    serves what the fleet serves.
    """
    spread = _Spread(observed, fanout)
    for view in wanted:
        spread.resume(view)  # all of them first: what has begun has its place before anything new gets one
    entries: dict[str, list[WantedAdapter]] = {pod.uid: [] for pod in observed}
    chosen: dict[str, frozenset[str]] = {}
    for view in wanted:
        targets = _choose(view, observed)
        chosen[view.wanted.uid] = frozenset(pod.uid for pod in targets)
        sources = spread.plan(view, view.wanted, targets)
        waiting = [pod for pod in targets if sources[pod.uid] == [_WAIT]]
        before = {} if view.previous is None else spread.plan(view, view.previous, waiting)
        for pod in targets:
            if view.previous is not None and pod.uid in before:
                entries[pod.uid].append(view.entry(view.previous, before[pod.uid]))
            else:
                entries[pod.uid].append(view.entry(view.wanted, sources[pod.uid]))
    ordered = {uid: sorted(items, key=lambda entry: entry.name) for uid, items in entries.items()}
    return PromotionPlan(ordered, chosen)


def _choose(view: AdapterView, observed: Sequence[PodObservation]) -> list[PodObservation]:
    """The pods that are to hold the adapter: all, or `replicas` of them, those that hold it already first."""
    staying = [pod for pod in observed if not pod.leaving]
    replicas = view.adapter.spec.replicas
    if replicas is None or replicas >= len(staying):
        return staying
    versions = [version for version in (view.wanted, view.previous) if version is not None]

    def preference(pod: PodObservation) -> tuple[bool, bool, bool, str]:
        holds = any(version.held_by(pod.inventory) for version in versions)
        assigned = view.wanted.uid in pod.told
        failed = _failure_fault(view, view.wanted, pod) is not None
        return (not holds, failed, not assigned, _rank(view.wanted.uid, pod.uid))

    return sorted(staying, key=preference)[:replicas]


def _rank(adapter: str, pod: str) -> str:
    """Rendezvous hash: spreads seeds and choices over pods, and is the same at every operator."""
    return hashlib.sha256(f"{adapter}/{pod}".encode()).hexdigest()


def _failure_fault(view: AdapterView, version: Version, pod: PodObservation) -> str | None:
    """ "content" or "pod" if the pod's last attempt at this version failed, though it may be at it again."""
    entry = version.attempt_on(pod.inventory, view.adapter.served_name)
    return None if entry is None or entry.error is None else entry.error.fault


class _Spread:
    """One planning pass; `uploads` counts what each holder is to send at once, over all adapters.

    `going`: sources of transfers that go on, by pod uid and version.
    """

    def __init__(self, observed: Sequence[PodObservation], fanout: int) -> None:
        self.observed = observed
        self.fanout = fanout
        self.uploads: Counter[str] = Counter()
        self.going: dict[tuple[str, Version], list[Source]] = {}

    def resume(self, view: AdapterView) -> None:
        """Find the transfers of an adapter that were ordered or have begun."""
        for version in (view.wanted, view.previous):
            if version is None:
                continue
            holders = self._holders(version)
            held = {pod.uid for pod in holders}
            for pod in self.observed:
                if pod.uid not in held and not pod.leaving:
                    sources = self._under_way(view, version, pod, holders)
                    if sources:
                        self.going[pod.uid, version] = sources
                        self._count(sources)

    def _holders(self, version: Version) -> list[PodObservation]:
        return [pod for pod in self.observed if version.held_by(pod.inventory)]

    def plan(
        self, view: AdapterView, version: Version, targets: Sequence[PodObservation]
    ) -> dict[str, list[Source]]:
        """Sources per target's uid: none for a holder, [wait] for one whose turn has not come."""
        holders = self._holders(version)
        held = {pod.uid for pod in holders}
        result: dict[str, list[Source]] = {pod.uid: [] if pod.uid in held else [_WAIT] for pod in targets}
        faults = {pod.uid: _failure_fault(view, version, pod) for pod in self.observed}
        refused = "content" in faults.values()
        idle = []
        for pod in targets:
            if pod.uid in held:
                continue
            if (pod.uid, version) in self.going:
                result[pod.uid] = self.going[pod.uid, version]
            elif not refused or faults[pod.uid] == "content":
                idle.append(pod)  # what one pod has refused goes to no other; that pod looks again itself
        if holders:
            self._from_peers(view, version, idle, holders, result)
        elif idle and not any(_ORIGIN in sources for sources in result.values()):
            seed = min(idle, key=lambda pod: self._seed_cost(view, version, pod))
            result[seed.uid] = [_ORIGIN]
        return result

    def _seed_cost(self, view: AdapterView, version: Version, pod: PodObservation) -> tuple[bool, bool, str]:
        """Sorts the best pod to go to the origin first: one that has not failed, one that serves."""
        failed = _failure_fault(view, version, pod) is not None
        return (failed, not pod.ready, _rank(version.uid, pod.uid))

    def _under_way(
        self, view: AdapterView, version: Version, pod: PodObservation, holders: Sequence[PodObservation]
    ) -> list[Source]:
        """The sources of a transfer that was ordered or has begun; they stay as they are. Else nothing."""
        entry = version.attempt_on(pod.inventory, view.adapter.served_name)
        if entry is not None and entry.state == "Failed":
            return []
        begun = entry is not None and entry.state == "Fetching"
        sources = [source for source in _as_told(view, version, pod) if source != _WAIT]
        if begun and not sources:  # ordered by an operator that has restarted since
            if entry is not None and entry.source_addr is not None:
                sources = [Source(kind="peer", addr=entry.source_addr)]
            elif not holders:
                sources = [_ORIGIN]
        if not begun and not _all_hold(sources, holders):
            return []
        return sources

    def _count(self, sources: Sequence[Source]) -> None:
        for source in sources:
            if source.addr is not None:
                self.uploads[source.addr] += 1

    def _from_peers(
        self,
        view: AdapterView,
        version: Version,
        idle: Sequence[PodObservation],
        holders: Sequence[PodObservation],
        result: dict[str, list[Source]],
    ) -> None:
        """Give each idle pod a holder that has an upload to spare; those for whom none has go on waiting.

        A pod whose transfer has failed gets another holder and, behind it, the origin: a broken network
        between pods is no dead end. Then it keeps its sources, so that its own pauses grow.
        """
        free = [holder for holder in holders if self.uploads[holder.addr] < self.fanout]
        free.sort(key=lambda holder: _rank(version.uid, holder.uid))
        for pod in sorted(idle, key=lambda pod: _rank(version.uid, pod.uid)):
            failed = _failure_fault(view, version, pod) is not None
            told = _as_told(view, version, pod)
            if failed and _ORIGIN in told and _all_hold(told, holders):
                self._count(told)
                result[pod.uid] = told
                continue
            if free:
                best = min(free, key=lambda holder: self._peer_cost(holder, told))
                sources = [Source(kind="peer", addr=best.addr)]
                self._count(sources)
                if self.uploads[best.addr] >= self.fanout:
                    free = [holder for holder in free if holder is not best]
                result[pod.uid] = [*sources, _ORIGIN] if failed else sources

    def _peer_cost(self, holder: PodObservation, told: Sequence[Source]) -> tuple[bool, bool, int]:
        """Sorts the best holder to ask first: not the one that failed, not one on its way out, not busy."""
        asked = any(source.addr == holder.addr for source in told)
        return (asked, holder.leaving, self.uploads[holder.addr])


def _all_hold(sources: Sequence[Source], holders: Sequence[PodObservation]) -> bool:
    """Whether every peer among the sources is (still) a holder."""
    addresses = {holder.addr for holder in holders}
    return all(source.addr in addresses for source in sources if source.kind == "peer")


def _as_told(view: AdapterView, version: Version, pod: PodObservation) -> list[Source]:
    """The sources that the pod was last told for this very version."""
    told = pod.told.get(view.wanted.uid)
    if told is None or (told.generation, told.uri) != (version.generation, version.uri):
        return []
    return list(told.sources)
