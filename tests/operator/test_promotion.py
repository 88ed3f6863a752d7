import math
from collections import Counter

import pytest
from operator_objects import Objects, digest_of
from simulated_fleet import Fleet, SimulatedPod, sources

from nllb_operator.promotion import PodObservation, plan_promotion
from nllb_server.wire import AdapterProblem


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
