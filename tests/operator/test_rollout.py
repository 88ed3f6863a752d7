import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_objects import Objects

from nllb_operator.backends.base import PodView
from nllb_operator.rollout import VICTIM_COST, ReplicaSetView, plan_deletion_costs, plan_rollout


class Fleet:
    """ReplicaSets and pods as a cluster keeps them: pods come, turn Ready, and take a while to go."""

    def __init__(self, make: Objects, **replicas: int) -> None:
        self.make = make
        self.replicas = dict(replicas)
        self.pods: list[PodView] = []

    def sets(self) -> list[ReplicaSetView]:
        return [ReplicaSetView(name, name, number) for name, number in self.replicas.items()]

    def plan(self, desired: int, current: str) -> None:
        plan = plan_rollout(desired, current, self.sets(), self.pods)
        for item in plan.finished:
            assert not [pod for pod in self.pods if pod.template_hash == item.template_hash]
            del self.replicas[item.template_hash]
        self.replicas |= plan.replicas

    def obey(self) -> None:
        """The ReplicaSet controller: makes what is missing, marks what is too many, unready ones first."""
        for name, number in self.replicas.items():
            mine = [pod for pod in self.pods if pod.template_hash == name and not pod.deleting]
            for _ in range(number - len(mine)):
                self.pods.append(self.make.pod(template_hash=name, ready=False))
            for pod in sorted(mine, key=lambda pod: pod.ready)[: max(len(mine) - number, 0)]:
                self.change(pod, deleting=True, ready=False)

    def change(self, pod: PodView, **values: object) -> None:
        place = self.pods.index(pod)
        self.pods[place] = PodView(**{**pod.__dict__, **values})  # type: ignore[arg-type]

    def start_one(self) -> bool:
        """One pod that starts turns Ready."""
        for pod in self.pods:
            if not pod.ready and not pod.deleting:
                self.change(pod, ready=True)
                return True
        return False

    def end_one(self) -> bool:
        """One pod that is to go is gone."""
        for pod in self.pods:
            if pod.deleting:
                self.pods.remove(pod)
                return True
        return False

    @property
    def ready(self) -> int:
        return sum(pod.ready for pod in self.pods)


def settled(make: Objects, template: str, number: int) -> Fleet:
    fleet = Fleet(make, **{template: number})
    fleet.obey()
    while fleet.start_one():
        pass
    return fleet


def test_without_an_old_template_the_number_is_the_desired_one(make: Objects) -> None:
    assert plan_rollout(3, "new", [], []).replicas == {"new": 3}
    fleet = settled(make, "new", 3)
    assert plan_rollout(5, "new", fleet.sets(), fleet.pods).replicas == {"new": 5}
    assert plan_rollout(0, "new", fleet.sets(), fleet.pods).replicas == {"new": 0}


def test_one_old_pod_goes_first_and_its_replacement_waits_until_it_is_gone(make: Objects) -> None:
    fleet = settled(make, "old", 3)

    fleet.plan(3, "new")
    fleet.obey()
    assert fleet.replicas == {"old": 2, "new": 0}

    fleet.plan(3, "new")
    assert fleet.replicas == {"old": 2, "new": 0}, "the old pod still has its GPU"

    fleet.end_one()
    fleet.plan(3, "new")
    assert fleet.replicas == {"old": 2, "new": 1}


def test_the_next_old_pod_stays_until_the_new_one_is_ready(make: Objects) -> None:
    fleet = settled(make, "old", 3)
    for _ in range(4):
        fleet.plan(3, "new")
        fleet.obey()
        fleet.end_one()
    assert fleet.replicas == {"old": 2, "new": 1}

    fleet.start_one()
    fleet.plan(3, "new")
    assert fleet.replicas == {"old": 1, "new": 1}


def test_a_single_pod_is_replaced_in_place(make: Objects) -> None:
    fleet = settled(make, "old", 1)

    fleet.plan(1, "new")
    assert fleet.replicas == {"old": 0, "new": 0}


def test_pods_that_serve_nobody_are_replaced_at_once(make: Objects) -> None:
    fleet = Fleet(make, old=3)
    fleet.obey()

    fleet.plan(3, "new")

    assert fleet.replicas["old"] == 0


def test_a_stale_view_of_the_pods_takes_no_second_pod(make: Objects) -> None:
    fleet = settled(make, "old", 3)
    fleet.plan(3, "new")

    fleet.plan(3, "new")  # the ReplicaSet was told 2, but all three pods are still listed as Ready

    assert fleet.replicas["old"] == 2


def test_a_very_stale_view_of_the_pods_brings_no_old_pod_back(make: Objects) -> None:
    fleet = settled(make, "old", 3)
    fleet.replicas = {"old": 1, "new": 1}  # and the pods' list is two steps behind

    fleet.plan(3, "new")

    assert fleet.replicas["old"] == 1


def test_an_old_pod_that_vanished_is_not_made_anew(make: Objects) -> None:
    fleet = settled(make, "old", 3)
    fleet.pods.pop()

    fleet.plan(3, "new")

    assert fleet.replicas == {"old": 2, "new": 1}


def test_planning_twice_changes_nothing(make: Objects) -> None:
    fleet = settled(make, "old", 4)
    fleet.plan(4, "new")
    fleet.obey()
    first = dict(fleet.replicas)

    fleet.plan(4, "new")

    assert fleet.replicas == first


@settings(max_examples=150, deadline=None)
@given(
    start=st.integers(0, 6),
    steps=st.lists(
        st.one_of(
            st.sampled_from(["start", "end", "plan", "obey"]), st.integers(0, 6), st.sampled_from("abc")
        ),
        max_size=60,
    ),
)
def test_whatever_happens_when_gpus_are_never_exceeded_and_the_fleet_arrives(
    start: int, steps: list[str | int]
) -> None:
    fleet = settled(Objects(itertools.count(1)), "a", start)
    desired, current = start, "a"
    limit = start
    for step in steps:
        if isinstance(step, int):
            desired = step
            limit = max(limit, desired)
        elif step in ("a", "b", "c"):
            current = step
        elif step == "start":
            fleet.start_one()
        elif step == "end":
            fleet.end_one()
        elif step == "obey":
            fleet.obey()
        else:
            fleet.plan(desired, current)
            rolling = any(number for name, number in fleet.replicas.items() if name != current)
            assert not rolling or sum(fleet.replicas.values()) <= limit

    limit = max(limit, len(fleet.pods))  # scaling alone, there and back, makes pods while others still go
    for _ in rounds(fleet):
        fleet.plan(desired, current)
        fleet.obey()
        rolling = set(fleet.replicas) != {current}
        if rolling:
            assert len(fleet.pods) <= max(limit, desired)
    assert fleet.replicas == {current: desired}
    assert fleet.ready == len(fleet.pods) == desired


def rounds(fleet: Fleet) -> Iterator[None]:
    """Enough of them, each with one event, which is the least helpful pace."""
    for number in range(120):
        fleet.end_one() if number % 2 else fleet.start_one()
        yield


@pytest.mark.parametrize("desired", [2, 3, 5])
def test_while_a_rollout_runs_only_one_pod_is_missing(make: Objects, desired: int) -> None:
    fleet = settled(make, "old", desired)
    for _ in range(200):
        fleet.plan(desired, "new")
        fleet.obey()
        assert fleet.ready >= desired - 1
        if not fleet.end_one():
            fleet.start_one()
    assert fleet.replicas == {"new": desired}


def test_a_scale_in_takes_pods_that_hold_nothing_unique_and_do_nothing(make: Objects) -> None:
    view = make.view("polite")
    other = make.view("rare")
    pods = [make.pod(name=name) for name in ("busy", "idle", "keeper")]
    inventories = {
        "uid-of-busy": make.inventory("busy", make.entry(view, "Loaded", refs=2)),
        "uid-of-idle": make.inventory("idle", make.entry(view, "Loaded")),
        "uid-of-keeper": make.inventory("keeper", make.entry(view, "Loaded"), make.entry(other, "Stored")),
    }

    costs = plan_deletion_costs({"current": 2}, pods, inventories)

    assert costs == {"uid-of-idle": VICTIM_COST}


def test_pods_that_do_not_answer_or_are_not_ready_go_first(make: Objects) -> None:
    pods = [make.pod(name="fine"), make.pod(name="starting", ready=False), make.pod(name="mute")]
    inventories = {"uid-of-fine": make.inventory("fine", make.entry(make.view("a"), "Loaded", refs=1))}

    assert set(plan_deletion_costs({"current": 1}, pods, inventories)) == {"uid-of-starting", "uid-of-mute"}


def test_without_a_scale_in_no_pod_is_annotated(make: Objects) -> None:
    pods = [make.pod(), make.pod()]

    assert plan_deletion_costs({"current": 2}, pods, {}) == {}
    assert plan_deletion_costs({"current": 3}, pods, {}) == {}


def test_a_victim_that_survived_is_no_longer_one_at_the_next_scale_in(make: Objects) -> None:
    view = make.view("polite")
    former = make.pod(name="former", deletion_cost=VICTIM_COST)
    pods = [former, make.pod(name="idle")]
    inventories = {
        "uid-of-former": make.inventory("former", make.entry(view, "Loaded", refs=5)),
        "uid-of-idle": make.inventory("idle", make.entry(view, "Loaded")),
    }

    assert plan_deletion_costs({"current": 1}, pods, inventories) == {
        "uid-of-former": 0,
        "uid-of-idle": VICTIM_COST,
    }
