import copy

from hypothesis import given
from hypothesis import strategies as st
from operator_objects import Objects

from nllb_operator.drift import differs, rescaled
from nllb_operator.manifests import desired_objects
from nllb_server.wire import WantedSet

VALUES = st.recursive(
    st.one_of(st.integers(), st.text(max_size=3), st.booleans()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["spec", "data", "x"]), VALUES)


@given(OBJECTS)
def test_an_object_does_not_differ_from_itself(body: dict[str, object]) -> None:
    assert not differs(body, copy.deepcopy(body))


@given(OBJECTS, st.text(min_size=1))
def test_what_the_server_adds_is_no_difference(body: dict[str, object], name: str) -> None:
    assert not differs(body, {**copy.deepcopy(body), f"added-{name}": 1, "status": {"ready": 3}})


@given(OBJECTS, VALUES)
def test_what_is_missing_or_changed_is_a_difference(body: dict[str, object], value: object) -> None:
    desired = {**body, "own": {"field": [1, value]}}

    assert differs(desired, body)
    assert differs(desired, {**body, "own": {"field": [2, value]}})
    assert differs(desired, {**body, "own": {"field": [1]}})


def test_empty_values_that_the_server_drops_are_no_difference() -> None:
    assert not differs({"resources": {}, "list": []}, {})


def test_a_key_added_to_a_selector_is_a_difference() -> None:
    assert differs({"spec": {"selector": {"a": "b"}}}, {"spec": {"selector": {"a": "b", "c": "d"}}})


def test_a_changed_ready_deadline_shows_although_every_old_field_is_there(make: Objects) -> None:
    def replica_set(**adapters: int) -> dict[str, object]:
        objects = desired_objects(make.deployment(adapters=adapters), WantedSet(fleet="f", revision=0), 1)
        return next(item for item in objects if item["kind"] == "ReplicaSet")

    assert differs(replica_set(readyDeadlineSeconds=7), replica_set())


def test_a_rescaled_replica_set_is_the_same_but_for_its_number(make: Objects) -> None:
    objects = desired_objects(make.deployment(), WantedSet(fleet="f", revision=0), 3)
    desired = next(item for item in objects if item["kind"] == "ReplicaSet")
    live = copy.deepcopy(desired)
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "creationTimestamp": "now"}
    live["status"] = {"replicas": 3}

    smaller = rescaled(live, 1)

    assert smaller == {**desired, "spec": {**desired["spec"], "replicas": 1}}
