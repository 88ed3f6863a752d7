import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from operator_objects import Objects, digest_of
from simulated_fleet import Fleet, SimulatedPod

from nllb_operator.wanted import adopt_digests


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
