"""A fleet of simulated pods that do what a promotion plan tells them, round by round."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from operator_objects import digest_of

from nllb_operator.promotion import PodObservation, PromotionPlan, plan_promotion
from nllb_operator.wanted import AdapterView, adopt_digests
from nllb_server.wire import AdapterProblem, Inventory, InventoryAdapter, ModelInfo, WantedAdapter


@dataclass
class SimulatedPod:
    """A pod as its inventory shows it; `finish` ends its transfers, all at once, well or not."""

    name: str
    ready: bool = True
    leaving: bool = False
    reachable: bool = True
    told: dict[str, WantedAdapter] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    seen: dict[str, str] = field(default_factory=dict)  # uri → digest of a first fetch
    failures: dict[str, AdapterProblem] = field(default_factory=dict)
    fetched: list[tuple[str, str | None]] = field(default_factory=list)  # digest, peer or None for the origin

    @property
    def uid(self) -> str:
        return f"uid-of-{self.name}"

    @property
    def addr(self) -> str:
        return f"{self.name}:8001"

    def digest(self, entry: WantedAdapter) -> str | None:
        return entry.digest or self.seen.get(entry.uri)

    def fetching(self) -> list[WantedAdapter]:
        return [
            entry
            for entry in self.told.values()
            if self.digest(entry) not in self.stored
            and entry.sources
            and entry.sources[0].kind != "wait"
            and entry.uid not in self.failures
        ]

    def tell(self, entries: Any) -> None:
        for entry in entries:
            known = self.told.get(entry.uid)
            if known is None or (known.generation, known.sources) != (entry.generation, entry.sources):
                self.failures.pop(entry.uid, None)  # another version or other sources: it is tried again
        self.told = {entry.uid: entry for entry in entries}

    def finish(self, contents: dict[str, str], fault: str | None = None) -> None:
        """Transfers end: with what the uri holds, or with a fault."""
        for entry in self.fetching():
            content = contents.get(entry.uri) if entry.sources[0].kind == "origin" else entry.digest
            if fault is not None or content is None or entry.digest not in (None, content):
                found = fault or ("pod" if content is None else "content")
                self.failures[entry.uid] = AdapterProblem(reason="Broken", message="no", fault=found)  # type: ignore[arg-type]
                continue
            self.seen[entry.uri] = content
            self.stored.add(content)
            self.fetched.append((content, entry.sources[0].addr))

    def inventory(self) -> Inventory:
        going = {entry.uid for entry in self.fetching()}
        entries = []
        for entry in self.told.values():
            digest = self.digest(entry)
            state = "Loaded" if digest in self.stored else "Absent"
            error = self.failures.get(entry.uid)
            if entry.uid in going:
                state = "Fetching"
            elif error is not None and digest not in self.stored:
                state = "Failed"
            shown = error if state == "Failed" else None
            entry_of = {"name": entry.name, "uid": entry.uid, "generation": entry.generation}
            entries.append(InventoryAdapter(**entry_of, digest=digest, state=state, error=shown))  # type: ignore[arg-type]
        return Inventory(
            boot_id="boot", pod=self.name, pod_uid=self.uid, fleet="fleet", revision=1,
            model=ModelInfo(uri="pvc://models/m", loaded=True), ready=self.ready, draining=self.leaving,
            adapters=entries, stored=sorted(self.stored),
        )  # fmt: skip

    def observation(self) -> PodObservation:
        return PodObservation(self.uid, self.addr, self.inventory(), self.ready, self.leaving, self.told)


@dataclass
class Fleet:
    pods: list[SimulatedPod]
    contents: dict[str, str]  # uri → digest of what it holds
    fanout: int = 2

    @classmethod
    def of(cls, number: int, *views: AdapterView, fanout: int = 2) -> "Fleet":
        contents = {
            view.adapter.spec.source.uri: view.wanted.digest or digest_of(view.wanted.uri) for view in views
        }
        return cls([SimulatedPod(f"pod-{index}") for index in range(number)], contents, fanout)

    def observe(self) -> list[PodObservation]:
        return [pod.observation() for pod in self.pods if pod.reachable]

    def plan(self, *views: AdapterView) -> PromotionPlan:
        known = adopt_digests(views, [pod.inventory for pod in self.observe()])
        return plan_promotion(known, self.observe(), self.fanout)

    def tell(self, *views: AdapterView) -> PromotionPlan:
        plan = self.plan(*views)
        for pod in self.pods:
            if pod.reachable and not pod.leaving:
                pod.tell(plan.entries[pod.uid])
        self.check(*views)
        return plan

    def finish(self) -> None:
        for pod in self.pods:
            if pod.reachable:
                pod.finish(self.contents)

    def round(self, *views: AdapterView) -> None:
        self.tell(*views)
        self.finish()

    def check(self, *views: AdapterView) -> None:
        """What must hold of every plan that is carried out."""
        uploads: Counter[str] = Counter()
        holders = {pod.addr: pod.stored for pod in self.pods}
        for pod in self.pods:
            for entry in pod.fetching():
                for source in entry.sources:
                    if source.kind == "peer":
                        assert source.addr is not None and source.addr != pod.addr
                        assert entry.digest in holders[source.addr], "a peer is asked for what it has not"
                        uploads[source.addr] += 1
        assert all(number <= self.fanout for number in uploads.values())

    def from_origin(self) -> list[str]:
        return [pod.name for pod in self.pods for _, peer in pod.fetched if peer is None]

    def holders(self, digest: str | None) -> int:
        return sum(digest in pod.stored for pod in self.pods)


def sources(plan: PromotionPlan, pod: SimulatedPod) -> list[str]:
    return [f"{source.kind}" for entry in plan.entries[pod.uid] for source in entry.sources]
