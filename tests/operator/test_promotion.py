import itertools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_objects import Objects, digest_of

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


def test_exactly_one_pod_goes_to_the_origin_and_the_others_wait(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(5, view)

    plan = fleet.plan(view)

    asked = Counter(kind for pod in fleet.pods for kind in sources(plan, pod))
    assert asked == {"origin": 1, "wait": 4}


@pytest.mark.parametrize("fanout", [1, 2, 4])
@pytest.mark.parametrize("number", [1, 2, 3, 10, 64, 100])
def test_holders_multiply_by_one_plus_fanout_each_round(make: Objects, number: int, fanout: int) -> None:
    view = make.view("polite")
    fleet = Fleet.of(number, view, fanout=fanout)
    rounds = 0
    while fleet.holders(view.wanted.digest) < number:
        fleet.round(view)
        rounds += 1

    assert rounds <= 1 + math.ceil(round(math.log(number, 1 + fanout), 9))
    assert len(fleet.from_origin()) == 1


def test_planning_twice_changes_nothing(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(7, view)
    for _ in range(3):
        first = fleet.tell(view)
        assert fleet.plan(view) == first
        fleet.finish()


def test_a_pod_that_holds_the_adapter_is_told_no_source(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(2, view)
    for _ in range(3):
        fleet.round(view)

    plan = fleet.plan(view)

    assert [sources(plan, pod) for pod in fleet.pods] == [[], []]


def test_an_unknown_digest_is_fixed_by_the_first_fetch_and_then_spreads_by_peers(make: Objects) -> None:
    view = make.view("polite", source={"uri": "pvc://models/polite"})
    assert view.wanted.digest is None
    fleet = Fleet.of(4, view)
    for _ in range(4):
        fleet.round(view)

    assert fleet.holders(digest_of("pvc://models/polite")) == 4
    assert len(fleet.from_origin()) == 1


def test_a_fault_of_the_content_stops_the_spread_at_once(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(4, view)
    fleet.contents[view.wanted.uri] = digest_of("something else")
    fleet.round(view)

    for _ in range(5):
        fleet.tell(view)
        assert not any(pod.fetching() for pod in fleet.pods)
    assert sum(bool(pod.failures) for pod in fleet.pods) == 1


def test_the_spread_stays_stopped_while_the_pod_that_refused_looks_again(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(3, view)
    plan = fleet.tell(view)
    (seed,) = (pod for pod in fleet.pods if pod.fetching())
    problem = AdapterProblem(reason="Broken", message="no", fault="content")
    again = seed.observation().inventory.adapters[0].model_copy(update={"error": problem})
    inventory = seed.inventory().model_copy(update={"adapters": [again]})
    assert again.state == "Fetching"

    observed = [
        PodObservation(pod.uid, pod.addr, inventory if pod is seed else pod.inventory(), told=pod.told)
        for pod in fleet.pods
    ]

    assert plan_promotion([view], observed, 2) == plan


def test_a_refused_adapter_spreads_after_its_spec_is_mended(make: Objects) -> None:
    broken = make.view("polite")
    fleet = Fleet.of(3, broken)
    fleet.contents[broken.wanted.uri] = digest_of("other")
    fleet.round(broken)
    body = make.adapter_body("polite", source={"uri": broken.wanted.uri, "sha256": digest_of("other")})
    body["metadata"]["generation"] = 2
    (mended,) = make.views(body)

    for _ in range(3):
        fleet.round(mended)

    assert fleet.holders(digest_of("other")) == 3


def test_a_fault_of_a_pod_moves_the_seed_to_another_pod(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(3, view)
    fleet.tell(view)
    (first,) = (pod for pod in fleet.pods if pod.fetching())
    first.finish({}, fault="pod")

    fleet.tell(view)

    (second,) = (pod for pod in fleet.pods if pod.fetching())
    assert second is not first


def test_when_every_pod_has_failed_one_of_them_keeps_trying_in_its_own_time(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(3, view)
    fleet.contents = {}
    for _ in range(4):
        fleet.round(view)

    plans = [fleet.tell(view) for _ in range(3)]

    assert plans[0] == plans[1] == plans[2], "new sources would end the pod's own pause"
    assert sum("origin" in sources(plans[0], pod) for pod in fleet.pods) == 1


@pytest.mark.parametrize("name", ["polite", "terms", "dates", "numerals", "rare", "old"])
def test_a_failed_transfer_gets_another_holder_and_behind_it_the_origin(make: Objects, name: str) -> None:
    view = make.view(name)
    fleet = Fleet.of(4, view, fanout=1)
    fleet.round(view)
    fleet.round(view)
    fleet.tell(view)
    victim = next(pod for pod in fleet.pods if pod.fetching())
    before = victim.told[view.wanted.uid].sources
    victim.finish({}, fault="pod")
    fleet.finish()

    fleet.tell(view)

    peer, origin = victim.told[view.wanted.uid].sources
    assert (peer.kind, origin.kind) == ("peer", "origin")
    assert peer.addr != before[0].addr


def test_a_seed_that_no_longer_answers_is_replaced(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(3, view)
    fleet.tell(view)
    (seed,) = (pod for pod in fleet.pods if pod.fetching())
    seed.reachable = False

    fleet.tell(view)

    assert sum(bool(pod.fetching()) for pod in fleet.pods if pod.reachable) == 1


def test_a_seed_is_not_replaced_because_a_pod_joins(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(2, view)
    fleet.tell(view)
    (seed,) = (pod for pod in fleet.pods if pod.fetching())
    fleet.pods += [SimulatedPod(f"late-{number}") for number in range(20)]

    fleet.tell(view)

    assert [pod for pod in fleet.pods if pod.fetching()] == [seed]


def test_after_a_restart_of_the_operator_transfers_go_on_as_they_were(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(3, view)
    fleet.tell(view)
    (seed,) = (pod for pod in fleet.pods if pod.fetching())
    forgetful = [
        PodObservation(item.uid, item.addr, item.inventory) for item in fleet.observe()
    ]  # nothing is known of what was told

    plan = plan_promotion([view], forgetful, 2)

    assert sources(plan, seed) == ["origin"]
    assert Counter(kind for pod in fleet.pods for kind in sources(plan, pod)) == {"origin": 1, "wait": 2}


def test_a_pod_on_its_way_out_gets_nothing_but_still_gives(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(2, view)
    fleet.round(view)
    (holder,) = (pod for pod in fleet.pods if pod.stored)
    holder.leaving = True

    plan = fleet.tell(view)

    assert plan.entries[holder.uid] == []
    (other,) = (pod for pod in fleet.pods if pod is not holder)
    assert [source.addr for source in other.told[view.wanted.uid].sources] == [holder.addr]


def test_an_adapter_for_some_pods_goes_to_that_many_and_stays_there(make: Objects) -> None:
    view = make.view("polite", replicas=2)
    fleet = Fleet.of(5, view)
    for _ in range(3):
        fleet.round(view)
    chosen = {pod.name for pod in fleet.pods if pod.stored}
    assert len(chosen) == 2

    fleet.pods += [SimulatedPod(f"late-{number}") for number in range(10)]
    for _ in range(3):
        fleet.round(view)

    assert {pod.name for pod in fleet.pods if pod.stored} == chosen


def test_when_a_chosen_pod_goes_another_takes_its_place(make: Objects) -> None:
    view = make.view("polite", replicas=2)
    fleet = Fleet.of(4, view)
    for _ in range(3):
        fleet.round(view)
    fleet.pods.remove(next(pod for pod in fleet.pods if pod.stored))

    for _ in range(3):
        fleet.round(view)

    assert fleet.holders(view.wanted.digest) == 2
    assert len(fleet.from_origin()) <= 1


def test_while_a_new_version_is_on_its_way_the_others_keep_the_previous_one(make: Objects) -> None:
    last = {"deployment": "fleet", "digest": digest_of("one"), "uri": "pvc://models/one", "generation": 1}
    body = make.adapter_body(
        "polite",
        source={"uri": "pvc://models/two", "sha256": digest_of("two")},
        status={"lastReady": last},
    )
    body["metadata"]["generation"] = 2
    (view,) = make.views(body)
    fleet = Fleet.of(4, view)
    for pod in fleet.pods[:3]:
        pod.stored.add(digest_of("one"))

    plan = fleet.tell(view)

    digests = Counter(entry.digest for pod in fleet.pods for entry in plan.entries[pod.uid])
    assert digests == {digest_of("two"): 1, digest_of("one"): 3}
    late = plan.entries[fleet.pods[3].uid][0]
    if late.digest == digest_of("one"):  # it started in between, and gets what the fleet serves
        assert late.required and late.sources[0].kind == "peer"


def test_a_refused_new_version_leaves_the_previous_one_to_new_pods(make: Objects) -> None:
    last = {"deployment": "fleet", "digest": digest_of("one"), "uri": "pvc://models/one", "generation": 1}
    body = make.adapter_body(
        "polite",
        source={"uri": "pvc://models/two", "sha256": digest_of("two")},
        status={"lastReady": last},
    )
    body["metadata"]["generation"] = 2
    (view,) = make.views(body)
    fleet = Fleet.of(3, view)
    fleet.contents = {"pvc://models/two": digest_of("broken"), "pvc://models/one": digest_of("one")}
    for pod in fleet.pods:
        pod.stored.add(digest_of("one"))
    fleet.round(view)
    fleet.pods.append(SimulatedPod("late", ready=False))

    for _ in range(3):
        fleet.round(view)

    assert digest_of("one") in fleet.pods[-1].stored
    assert sum(bool(pod.failures) for pod in fleet.pods) == 1


def test_a_pod_that_serves_is_the_seed_rather_than_one_that_starts(make: Objects) -> None:
    view = make.view("polite")
    fleet = Fleet.of(6, view)
    for pod in fleet.pods[1:]:
        pod.ready = False

    fleet.tell(view)

    assert fleet.pods[0].fetching()


def test_a_namesake_created_anew_is_not_taken_for_the_old_adapter(make: Objects) -> None:
    old = make.view("polite", source={"uri": "pvc://models/old"})
    fleet = Fleet.of(2, old)
    for _ in range(3):
        fleet.round(old)
    body = make.adapter_body("polite", source={"uri": "pvc://models/new"})
    body["metadata"]["uid"] = "another-uid"
    (new,) = make.views(body)
    fleet.contents["pvc://models/new"] = digest_of("new")

    assert adopt_digests([new], [pod.inventory for pod in fleet.observe()])[0].wanted.digest is None
    for _ in range(3):
        fleet.round(new)

    assert fleet.holders(digest_of("new")) == 2


@settings(max_examples=60, deadline=None)
@given(
    number=st.integers(1, 12),
    adapters=st.integers(1, 4),
    fanout=st.integers(1, 3),
    events=st.lists(
        st.tuples(st.sampled_from(["finish", "fail", "lose", "back", "join"]), st.integers(0, 11)),
        max_size=25,
    ),
)
def test_whatever_pods_do_every_adapter_arrives_everywhere_within_the_limits(
    number: int, adapters: int, fanout: int, events: list[tuple[str, int]]
) -> None:
    make = Objects(itertools.count(1))
    views = [make.view(f"adapter-{index}") for index in range(adapters)]
    fleet = Fleet.of(number, *views, fanout=fanout)
    for event, index in events:
        fleet.tell(*views)
        pod = fleet.pods[index % len(fleet.pods)]
        if event == "finish":
            pod.finish(fleet.contents)
        elif event == "fail":
            pod.finish({}, fault="pod")
        elif event == "join" and len(fleet.pods) < 15:
            fleet.pods.append(SimulatedPod(f"late-{len(fleet.pods)}"))
        elif event == "lose":  # it crashes; what it was told is forgotten
            pod.reachable, pod.told, pod.failures = False, {}, {}
        elif event == "back":
            pod.reachable = True

    for pod in fleet.pods:
        pod.reachable = True
    for _ in range(25):
        fleet.tell(*views)
        for pod in fleet.pods:
            pod.failures.clear()  # pods repeat by themselves what has failed
        fleet.finish()
    for view in views:
        assert fleet.holders(view.wanted.digest) == len(fleet.pods)
